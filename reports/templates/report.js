"use strict";
// Sorting by a click on a heading and filtering by text; without scripts the tables are complete.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        if (!cell.hasAttribute("data-order")) return cell.textContent;
        return cell.dataset.order === "" ? null : Number(cell.dataset.order);
      };
      const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b)) * (down ? -1 : 1);
      const rows = [...body.rows].map((row) => [value(row), row]);
      rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  });
}
for (const form of document.querySelectorAll(".filter")) {
  const table = document.getElementById(form.dataset.table);
  const [search, shown] = [form.querySelector("input"), form.querySelector("output")];
  const apply = () => {
    const words = search.value.trim().toLowerCase();
    let n = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(words);
      n += !row.hidden;
    }
    shown.textContent = `${n} ${form.dataset.noun} shown`;
  };
  form.hidden = false;
  search.addEventListener("input", apply);
  apply();
}
// What is wider than the page fades out where it is cut, and its caption says that it can be scrolled.
function showCut(box) {
  const hidden = box.scrollWidth - box.clientWidth;
  box.classList.toggle("more", hidden - box.scrollLeft > 2);
  box.classList.toggle("moved", box.scrollLeft > 0);
  box.closest("figure")?.classList.toggle("cut", hidden > 2);
}
const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => showCut(target)));
for (const box of document.querySelectorAll(".scroll")) {
  sizes.observe(box);
  box.addEventListener("scroll", () => showCut(box), { passive: true });
}
// What the top of the page folds is printed.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll(".cautions details, .answers details")) fold.open = true;
});
// On a narrow screen the contents start closed.
if (window.matchMedia("(max-width: 1100px)").matches) document.querySelector("nav details").open = false;
