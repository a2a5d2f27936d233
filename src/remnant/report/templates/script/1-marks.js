// A figure is a list of marks (lines, areas, text) in points, which becomes SVG for the page and SVG or PDF for a file.

const DASHES = [[], [5, 2], [2, 1.5], [6, 2, 1, 2]];
const MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p"];
const FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif";
const ruler = document.createElement("canvas").getContext("2d");

function textWidth(text, size, bold) {
  ruler.font = `${bold ? "bold " : ""}${size}px ${FONT}`;
  return ruler.measureText(text).width;
}

const line = (points, colour = "ink", width = 1.6, dash = 0) => ({ kind: "line", points, colour, width, dash: DASHES[dash] });
const area = (points, colour, opacity = 1, edge = false) => ({ kind: "area", points, colour, opacity, edge });
const text = (x, y, words, options = {}) => ({ kind: "text", x, y, words: String(words), size: 10.5, anchor: "start", colour: "ink", ...options });

function ring(corners, radius, turn = 0, inner = radius) {
  return Array.from({ length: corners }, (_, i) => {
    const angle = turn + (2 * Math.PI * i) / corners, r = i % 2 ? inner : radius;
    return [r * Math.sin(angle), -r * Math.cos(angle)];
  });
}

function cross(radius, turn) {
  const a = radius / 3, r = radius;
  const corners = [[-a, -r], [a, -r], [a, -a], [r, -a], [r, a], [a, a], [a, r], [-a, r], [-a, a], [-r, a], [-r, -a], [-a, -a]];
  return corners.map(([x, y]) => [x * Math.cos(turn) - y * Math.sin(turn), x * Math.sin(turn) + y * Math.cos(turn)]);
}

// The markers of matplotlib with the same names.
function outline(name, r) {
  switch (name) {
    case "s": return ring(4, r * 1.2, Math.PI / 4);
    case "D": return ring(4, r * 1.25);
    case "^": return ring(3, r * 1.3);
    case "v": return ring(3, r * 1.3, Math.PI);
    case ">": return ring(3, r * 1.3, Math.PI / 2);
    case "<": return ring(3, r * 1.3, -Math.PI / 2);
    case "p": return ring(5, r * 1.15);
    case "*": return ring(10, r * 1.4, 0, r * 0.6);
    case "P": return cross(r * 1.2, 0);
    case "X": return cross(r * 1.25, Math.PI / 4);
    default: return ring(20, r);
  }
}

const marker = (look, x, y, r = 3.6) => area(outline(look.marker, r).map(([dx, dy]) => [x + dx, y + dy]), look.colour, 1, true);
const look = (number) => ({ colour: data.colours[number % 7], marker: MARKERS[number % 11], dash: Math.floor(number / 7) % 4 });

const round = (value) => Math.round(value * 100) / 100;
const pathOf = (points, close) => points.map(([x, y], i) => `${i ? "L" : "M"}${round(x)} ${round(y)}`).join("") + (close ? "Z" : "");
const paint = (colour) => ({ ink: "currentColor", soft: "#80808a" })[colour] || colour;

function svgNode(tag, attributes, words) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (words !== undefined) node.textContent = words;
  return node;
}

function svgMark(mark) {
  if (mark.kind === "text") {
    const place = { x: round(mark.x), y: round(mark.y), "font-size": mark.size, "text-anchor": mark.anchor, fill: paint(mark.colour) };
    if (mark.bold) place["font-weight"] = "bold";
    if (mark.upwards) place.transform = `rotate(-90 ${round(mark.x)} ${round(mark.y)})`;
    return svgNode("text", place, mark.words);
  }
  if (mark.kind === "line") {
    const stroke = { d: pathOf(mark.points), fill: "none", stroke: paint(mark.colour), "stroke-width": mark.width, "stroke-linejoin": "round" };
    if (mark.dash.length) stroke["stroke-dasharray"] = mark.dash.map((part) => part * mark.width).join(" ");
    return svgNode("path", stroke);
  }
  const fill = { d: pathOf(mark.points, true), fill: paint(mark.colour), "fill-opacity": mark.opacity };
  if (mark.edge) Object.assign(fill, { stroke: "currentColor", "stroke-width": 0.5 });
  return svgNode("path", fill);
}

function toSvg(drawing, name) {
  const { width, height } = drawing;
  const svg = svgNode("svg", { viewBox: `0 0 ${round(width)} ${round(height)}`, width: round(width), height: round(height), "font-family": FONT, ...(name ? { role: "img", "aria-label": name } : { "aria-hidden": "true" }) });
  drawing.marks.forEach((mark) => svg.append(svgMark(mark)));
  return svg;
}
