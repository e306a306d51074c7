"use strict";
(() => {
  const root = document.documentElement;
  const wanted = new URLSearchParams(location.search).get("theme");
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = wanted || system;
  document.getElementById("theme").onclick = () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  };
  // A value under the pointer, wherever it is made and used in the same box.
  for (const graph of document.querySelectorAll("[data-scope]")) {
    const mark = (event, on) => {
      const value = event.target.closest(".v");
      if (!value) return;
      const same = graph.querySelectorAll(`.v[data-v="${value.dataset.v}"]`);
      for (const other of same) other.classList.toggle("on", on);
    };
    graph.addEventListener("mouseover", (event) => mark(event, true));
    graph.addEventListener("mouseout", (event) => mark(event, false));
  }
  for (const button of document.querySelectorAll(".more")) {
    button.onclick = () => {
      const rows = document.querySelectorAll(`#${button.dataset.table} .hidden`);
      for (const row of rows) row.classList.remove("hidden");
      button.remove();
    };
  }
})();
