(function () {
  "use strict";
  var table = document.querySelector(".matrix");
  var openedFrom = null; // the cell from which the details were opened

  function show() {
    var id = decodeURIComponent(location.hash.slice(1));
    var detail = id && document.getElementById(id);
    var open = detail && detail.classList.contains("detail");
    table.querySelectorAll("a").forEach(function (link) {
      if (open && link.hash.slice(1) === id) { link.setAttribute("aria-current", "true"); openedFrom = link; }
      else link.removeAttribute("aria-current");
    });
    if (open) detail.focus();
  }

  function linkAt(row, column) {
    var cells = table.tBodies[0].rows[row];
    return cells && cells.cells[column] && cells.cells[column].querySelector("a");
  }

  function neighbour(link, down, right) {
    var rows = table.tBodies[0].rows.length, columns = table.tBodies[0].rows[0].cells.length;
    var cell = link.closest("td"), row = cell.parentNode.sectionRowIndex, column = cell.cellIndex, found = null;
    for (row += down, column += right; !found && row >= 0 && row < rows && column > 0 && column < columns; row += down, column += right)
      found = linkAt(row, column);
    return found;
  }

  table.addEventListener("keydown", function (event) {
    var step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    var link = event.target.closest("a");
    if (!step || !link) return;
    event.preventDefault();
    var next = neighbour(link, step[0], step[1]);
    if (next) next.focus();
  });

  function back(event) {
    event.preventDefault();
    var link = openedFrom;
    location.hash = "matrix";
    if (link) link.focus();
  }

  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape" && event.target.closest(".detail")) back(event);
  });
  document.querySelectorAll(".back").forEach(function (link) { link.addEventListener("click", back); });
  addEventListener("hashchange", show);
  show();
})();
