"use strict";
// A click on a heading sorts its table; numbers by value, dashes last.
const makeSortable = (table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    if (table.tBodies[0].rows[0] && table.tBodies[0].rows[0].cells[index].classList.contains("text")) head.className = "text";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => sortBy(table, heads, head, index));
  });
};

const sortBy = (table, heads, head, index) => {
  const ascending = head.getAttribute("aria-sort") !== "ascending";
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const sign = ascending ? 1 : -1;
  const key = (tr) => {
    const cell = tr.cells[index];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (typeof x === "number" && typeof y === "number") return sign * (x - y);
    if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1; // Dashes stay last.
    return sign * x.localeCompare(y, "en");
  };
  const body = table.tBodies[0];
  [...body.rows].sort(order).forEach((tr) => body.append(tr));
};

const sortableTables = () => document.querySelectorAll("table.sortable").forEach(makeSortable);
