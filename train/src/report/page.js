for (const figure of document.querySelectorAll(".charts figure")) {
  const svg = figure.querySelector("svg");
  const output = figure.querySelector("output");
  const cursor = svg.querySelector(".cursor");
  const [first, last, left, right] = svg.dataset.x.split(" ").map(Number);
  const [low, high, bottom, top, logarithmic] = svg.dataset.y.split(" ").map(Number);
  const curves = [...svg.querySelectorAll("polyline")].map(line => ({
    name: line.dataset.name,
    points: line.getAttribute("points").split(" ").map(point => point.split(",").map(Number)),
  }));
  const value = y => {
    const along = low + (high - low) * (bottom - y) / (bottom - top);
    return logarithmic ? 10 ** along : along;
  };
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const pointed = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const x = Math.min(right, Math.max(left, pointed));
    const step = Math.round(first + (last - first) * (x - left) / (right - left));
    const nearest = points => points.reduce((best, point) =>
      Math.abs(best[0] - x) > Math.abs(point[0] - x) ? point : best);
    const numbers = curves.map(curve => `${curve.name} ${Number(value(nearest(curve.points)[1]).toPrecision(4))}`);
    output.textContent = [`step ${step}`, ...numbers].join(" · ");
    cursor.setAttribute("d", `M${x} ${top}V${bottom}`);
  });
  svg.addEventListener("pointerleave", () => {
    output.textContent = "";
    cursor.setAttribute("d", "");
  });
}
