"use strict";
// A token and its patch share a key: pointing at either highlights both and describes the token at the bottom.
const now = document.getElementById("now");
const hint = now.textContent;
const byKey = new Map();
for (const element of document.querySelectorAll("[data-k]")) {
  const key = element.dataset.k;
  byKey.set(key, [...(byKey.get(key) || []), element]);
}
const items = document.getElementById("items");
function showInItems(patch) {  // only where the items scroll on their own, beside the tokens
  const place = patch.getBoundingClientRect(), frame = items.getBoundingClientRect();
  const hidden = place.top < frame.top || place.bottom > frame.bottom;
  if (hidden && items.scrollHeight > items.clientHeight) items.scrollTop += place.top - frame.top - frame.height / 2;
}
let lit = [];
document.addEventListener("mouseover", (event) => {
  for (const element of lit) element.classList.remove("lit");
  const at = event.target.closest("[data-k], .token");
  lit = at ? byKey.get(at.dataset.k) || [] : [];
  for (const element of lit) element.classList.add("lit");
  const token = [at, ...lit].find((element) => element && element.matches(".token"));
  now.textContent = token ? token.title : hint;
  const patch = lit.find((element) => element.matches("i"));
  if (patch && at === token) showInItems(patch);
});
