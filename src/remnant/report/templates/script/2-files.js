// A figure as a file: SVG, or PDF with the fonts that every reader of PDF has.

const WINDOWS = { "−": "\x96", "–": "\x96", "…": "\x85", "’": "\x92", "•": "\x95" }; // of code page 1252, beyond Latin-1

function pdfColour(colour) {
  const hex = { ink: "#1b1b1f", soft: "#80808a" }[colour] || colour;
  return [1, 3, 5].map((at) => round(parseInt(hex.slice(at, at + 2), 16) / 255)).join(" ");
}

function pdfText(words) {
  const latin = [...words].map((letter) => WINDOWS[letter] || (letter.charCodeAt(0) < 256 ? letter : "?")).join("");
  return latin.replace(/[\\()]/g, "\\$&");
}

function pdfMark(mark, height) {
  const path = (points) => points.map(([x, y], i) => `${round(x)} ${round(height - y)} ${i ? "l" : "m"}`).join(" ");
  if (mark.kind === "line") {
    const dash = mark.dash.map((part) => part * mark.width).join(" ");
    return `${pdfColour(mark.colour)} RG ${mark.width} w [${dash}] 0 d 1 j ${path(mark.points)} S`;
  }
  if (mark.kind === "area") {
    const edge = mark.edge ? "0.11 0.11 0.12 RG 0.5 w [] 0 d" : "";
    return `q ${mark.opacity < 1 ? "/Faint gs" : ""} ${pdfColour(mark.colour)} rg ${edge} ${path(mark.points)} ${mark.edge ? "b" : "f"} Q`;
  }
  const shift = { start: 0, middle: 0.5, end: 1 }[mark.anchor] * textWidth(mark.words, mark.size, mark.bold);
  const [x, y] = mark.upwards ? [mark.x, height - mark.y - shift] : [mark.x - shift, height - mark.y];
  const turn = mark.upwards ? "0 1 -1 0" : "1 0 0 1";
  return `BT ${pdfColour(mark.colour)} rg /${mark.bold ? "Bold" : "Plain"} ${mark.size} Tf ${turn} ${round(x)} ${round(y)} Tm (${pdfText(mark.words)}) Tj ET`;
}

function toPdf({ marks, width, height }) {
  const stream = marks.map((mark) => pdfMark(mark, height)).join("\n");
  const font = (name) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
  const parts = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${round(width)} ${round(height)}] /Contents 4 0 R /Resources << /Font << /Plain 5 0 R /Bold 6 0 R >> /ExtGState << /Faint << /ca 0.15 >> >> >> >>`,
    `<< /Length ${stream.length} >>\nstream\n${stream}\nendstream`,
    font("Helvetica"),
    font("Helvetica-Bold"),
  ];
  let pdf = "%PDF-1.4\n", places = "";
  parts.forEach((part, i) => {
    places += `${String(pdf.length).padStart(10, "0")} 00000 n \n`;
    pdf += `${i + 1} 0 obj\n${part}\nendobj\n`;
  });
  const start = pdf.length;
  pdf += `xref\n0 ${parts.length + 1}\n0000000000 65535 f \n${places}trailer\n<< /Size ${parts.length + 1} /Root 1 0 R >>\nstartxref\n${start}\n%%EOF\n`;
  return Uint8Array.from(pdf, (letter) => letter.charCodeAt(0));
}

function svgFile(drawing, name) {
  const svg = toSvg(drawing, name);
  svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  svg.setAttribute("color", "#1b1b1f");
  return new XMLSerializer().serializeToString(svg);
}

function download(content, type, file) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: address, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
