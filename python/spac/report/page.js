"use strict";
// Draws the page's data into its places.

const data = JSON.parse(document.getElementById("data").textContent);

for (const [name, spec] of Object.entries(data.charts)) {
  const host = document.getElementById(`chart-${name}`);
  if (host) new Chart(host, spec);
}

if (data.experts) {
  const experts = new Experts(data.experts);
  experts.readout = document.getElementById("expert");
  experts.hint = experts.readout.textContent;
  let most = 1;
  for (const count of experts.demand) most = Math.max(most, count);
  const looks = Math.max(1, experts.looks);
  // Demand is skewed. Its square root keeps rare demand distinguishable from none.
  new HeatMap(document.getElementById("heat-resident"), experts, "Residency", "resident",
    (i) => experts.resident[i] / looks, ["never", "in every step"]);
  new HeatMap(document.getElementById("heat-demand"), experts, "Demand", "demand",
    (i) => Math.sqrt(experts.demand[i] / most), ["none", `${most.toLocaleString("en")} activations`]);
  for (const input of document.querySelectorAll("input[name=order]")) {
    input.addEventListener("change", () => experts.sortBy(input.value));
  }
  data.experts.view = experts;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) chart.draw();
  for (const map of data.experts ? data.experts.view.maps : []) map.draw();
});
document.documentElement.dataset.ready = "yes";
