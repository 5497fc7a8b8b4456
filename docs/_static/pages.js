"use strict";

/* A pasted line of a log has names, paths and numbers that no page has, and the search asks for every word of it. Behind the pages
   that have all words stand those with the most of them: rare words count more, and words of a title. */
if (typeof Search !== "undefined") {
  const ofAllWords = Search.performTermsSearch;
  Search.performTermsSearch = (words, without) => {
    const found = ofAllWords(words, without);
    if (found.length > 2 || words.size < 2) return found;
    const pages = new Map();
    for (const word of words) {
      const having = ofAllWords(new Set([word]), without);
      for (const page of having) {
        const entry = pages.get(page[0]) || [...page.slice(0, 4), 0, ...page.slice(5)];
        entry[4] += page[4] * Math.log(1 + Search._index.docnames.length / having.length);
        pages.set(page[0], entry);
      }
    }
    const all = [...pages.values()];
    const best = Math.max(0, ...all.map((page) => page[4]));
    const first = new Set(found.map((page) => page[0]));
    for (const page of all) page[4] = page[4] / best + (first.has(page[0]) ? 1 : 0);
    return all.filter((page) => page[4] >= 0.4);
  };
}

const sought = typeof Search === "undefined" && !location.hash && localStorage.getItem("sphinx_highlight_terms");

/* Return the length of the longest piece of the sought words that a text has. */
function agreement(text, words) {
  const plain = ` ${text.toLowerCase().replace(/[^\p{L}\p{N}_]+/gu, " ")} `;
  const lengths = words.map((_, from) => {
    let to = from;
    while (to < words.length && plain.includes(` ${words.slice(from, to + 1).join(" ")} `)) to++;
    return words.slice(from, to).join(" ").length;
  });
  return Math.max(0, ...lengths);
}

document.addEventListener("DOMContentLoaded", () => {
  // From the search: to the place that is most like what was sought.
  if (sought) {
    const words = sought.split(" ");
    const places = [...document.querySelectorAll("article li, article tr, article p, article pre, article h1, article h2")];
    const lengths = places.map((place) => agreement(place.textContent, words));
    const best = lengths.indexOf(Math.max(...lengths));
    if (best >= 0) setTimeout(() => places[best].scrollIntoView({ block: "center", behavior: "instant" }), 50);
  }
  // Of a console, the commands without their prompts; else all of a block.
  for (const pre of document.querySelectorAll(".highlight-sh pre, .highlight-console pre, .highlight-toml pre")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const lines = pre.textContent.trimEnd().split("\n");
      const typed = lines.filter((line) => /^[$>] /.test(line)).map((line) => line.slice(2));
      const isConsole = pre.closest(".highlight-console");
      await navigator.clipboard.writeText((isConsole ? typed : lines).join("\n") + "\n");
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    pre.parentElement.append(button);
  }
});
