// docs/errors: a page a record and an index with a search that works from file://.
#include <algorithm>

#include "explain.h"

namespace kda::doctor {

namespace {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

const char* const kStyle =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 "
    "1rem;color:#1a1a1a;background:#fff}"
    "code,pre{font:14px/1.4 ui-monospace,monospace;background:#f3f4f6;border-radius:4px}code{padding:.1rem .3rem}"
    "pre{padding:.7rem;overflow-x:auto;white-space:pre-wrap}h1{font-size:1.4rem}h2{font-size:1.05rem;margin:1.4rem 0 "
    ".3rem}"
    "textarea{width:100%;height:6rem;font:14px/1.4 ui-monospace,monospace;box-sizing:border-box}li{margin:.3rem 0}"
    ".meta{color:#555}.hit{border-left:3px solid #2563eb;padding-left:.6rem}a{color:#1d4ed8}"
    "@media(prefers-color-scheme:dark){body{color:#e5e7eb;background:#111}code,pre{background:#1f2937}.meta{color:#"
    "9ca3af}a{color:#93c5fd}"
    "textarea{background:#1f2937;color:#e5e7eb}}";

std::string head(const std::string& title) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
         "content=\"width=device-width\">\n<title>" +
         escape(title) + "</title>\n<style>" + kStyle + "</style>\n</head>\n<body>\n";
}

std::string page(const Json& record) {
  const auto text = [&](const char* key) { return escape(record.value(key, "")); };
  std::string out = head(record.value("id", ""));
  out += "<p><a href=\"index.html\">All errors</a></p>\n<h1>" + text("id") + "</h1>\n<p class=\"meta\">" +
         text("engine") + " " + text("versions") + " &middot; phase " + text("phase") + " &middot; " + text("when") +
         " &middot; " + text("error_class") + "</p>\n<pre>" + text("message_pattern") + "</pre>\n<p>" +
         text("meaning") + "</p>\n";
  const auto list = [&](const char* title, const char* key) {
    if (!record.contains(key) || record[key].empty()) return;
    out += std::string("<h2>") + title + "</h2>\n<ul>\n";
    for (const Json& item : record[key]) out += "<li>" + escape(item.get<std::string>()) + "</li>\n";
    out += "</ul>\n";
  };
  list("Triggers", "triggers");
  list("Situations", "situations");
  list("Solutions", "solutions");
  out += "<h2>Before</h2>\n<pre>" + escape(record["example_fix"].value("before", "")) +
         "</pre>\n<h2>After</h2>\n<pre>" + escape(record["example_fix"].value("after", "")) +
         "</pre>\n<h2>Check beforehand</h2>\n<pre>" + escape(record["validation"].value("shell", "")) +
         "</pre>\n<h2>In a launcher script</h2>\n<pre>" + escape(record["validation"].value("python", "")) + "</pre>\n";
  if (!record["related"].empty()) {
    out += "<h2>Related</h2>\n<p>";
    for (const Json& id : record["related"])
      out += "<a href=\"" + escape(id.get<std::string>()) + ".html\">" + escape(id.get<std::string>()) + "</a> ";
    out += "</p>\n";
  }
  out += "<p class=\"meta\">Source: " + text("source") + "</p>\n</body>\n</html>\n";
  return out;
}

// The same matching as Catalogue::search and MessagePattern, whose comments explain it; similar ones by words alone.
const char* const kScript = R"(
const comparable = t => t.replace(/\x1b\[[0-9;]*[a-z]/gi, "").replace(/[\u2018\u2019\u201c\u201d"`]/g, "'")
  .replace(/\u2026/g, "...").toLowerCase().replace(/[0-9]+/g, "#").replace(/\s+/g, " ").trim();
const words = t => comparable(t).split(/[^a-z0-9_#]+/).filter(w => w.length > 2);
function pattern(message) {
  const split = message.replace("{flag}", "--option").split(/\{[^}]*\}/).map(comparable);
  const parts = split.filter(s => /[^. ]/.test(s));
  return {parts, letters: parts.reduce((n, p) => n + p.length, 0), option: message.includes("{flag}"),
    holeFirst: !/[^. ]/.test(split[0]), holeLast: !/[^. ]/.test(split[split.length - 1])};
}
for (const r of RECORDS) r.messages = r.patterns.map(pattern);
const overlap = (text, part, most) => {  // letters of the part's beginning that end the text
  let n = Math.min(most, text.length);
  while (n > 0 && !text.endsWith(part.slice(0, n))) --n;
  return n;
};
function findWhole(p, text) {
  let tried = 0;
  for (let begin = text.indexOf(p.parts[0]); begin >= 0 && tried < 64; begin = text.indexOf(p.parts[0], begin + 1), ++tried) {
    let at = begin + p.parts[0].length, all = true;
    for (let i = 1; i < p.parts.length && all; ++i) {
      const found = text.indexOf(p.parts[i], at);
      if (found < 0) return null;
      all = found - at <= 400;
      at = found + p.parts[i].length;
    }
    if (all) return p.letters < 11 && p.letters + 8 < text.length ? null : {letters: p.letters, begin, end: at, whole: true};
  }
  return null;
}
function goOn(p, part, at, letters, begin, text) {
  for (; part < p.parts.length; ++part) {
    const wanted = p.parts[part], next = text.indexOf(wanted, at);
    if (next >= 0 && next - at <= 400) { letters += wanted.length; at = next + wanted.length; continue; }
    const n = overlap(text.slice(at), wanted, wanted.length - 1), first = wanted.split(" ")[0];
    if (text.length - at - n > 80 || (n === 0 && first.length > 1 && text.indexOf(first, at) >= 0)) return null;
    return {letters: letters + n, begin, end: text.length};
  }
  return {letters, begin, end: p.holeLast && text.length - at <= 80 ? text.length : at};
}
function findCut(p, text) {
  let best = null;
  const offer = m => {
    if (!m || (best && m.letters <= best.letters)) return;
    const alone = m.begin === 0 && m.end === text.length;
    const enough = alone ? 3 * m.letters >= text.length && (m.letters >= 16 || (m.letters >= 8 && 3 * m.letters >= p.letters))
                         : m.letters >= 24 || (m.letters >= 14 && 2 * m.letters >= p.letters);
    if (enough) best = m;
  };
  if (!p.parts.length || !text) return null;
  p.parts.forEach((part, i) => {
    if (part.includes(text)) offer({letters: text.length, begin: 0, end: text.length});
    let n = Math.min(part.length, text.length);
    while (n > 0 && !text.startsWith(part.slice(part.length - n))) --n;
    if (n > 0) offer(goOn(p, i + 1, n, n, 0, text));
    if (i === 0 && !p.holeFirst) return;
    n = overlap(text, part, part.length - 1);
    if (n >= 10 && text.length - n <= 80) offer({letters: n, begin: 0, end: text.length});
    const first = text.indexOf(part);
    if (first >= 0 && first <= 80) offer(goOn(p, i + 1, first + part.length, part.length, 0, text));
  });
  const start = p.parts[0];
  let tried = 0;
  for (let begin = text.indexOf(start); begin >= 0 && tried < 64; begin = text.indexOf(start, begin + 1), ++tried)
    offer(goOn(p, 1, begin + start.length, start.length, begin, text));
  const n = overlap(text, start, start.length - 1);
  if (n > 0) offer({letters: n, begin: text.length - n, end: text.length});
  return best;
}
function matching(text) {
  const pieces = [];
  const add = at => {
    const raw = text.slice(at), front = raw.replace(/^[. ']+/, "");
    pieces.push([raw, at], [front, text.length - front.length], [front.replace(/[. ']+$/, ""), text.length - front.length]);
  };
  add(0);
  for (const ending of ["error: ", "exception: "])
    if (text.includes(ending)) add(text.lastIndexOf(ending) + ending.length);
  const bare = !/[ _-]/.test(text) && /(error|exception)$/.test(text);
  const optionName = /(?<![a-z0-9-])--[a-z_#-]+/g, used = text.match(optionName) || [];
  const engines = Object.keys(OPTIONS);
  const own = engines.filter(e => text.includes(e) || used.some(o => engines.every(x => OPTIONS[x].includes(o) === (x === e))));
  const engine = own.length === 1 ? own[0] : "";
  const replaced = {};
  for (const e of engines)
    replaced[e] = pieces.map(([t, offset]) => {
      const end = t.split(/[: ]/)[0];
      let begin = 0;
      if (end.length > 2 && !end.startsWith("--") && OPTIONS[e].some(o => o.endsWith(end))) begin = end.length;
      return [(begin ? "option" : "") + t.slice(begin).replace(optionName, (name, at) =>
        OPTIONS[e].includes(name) || ((name.length > 7 || begin + at + name.length === t.length) &&
          OPTIONS[e].some(o => o.startsWith(name))) ? "--option" : name), offset];
    });
  const hits = [];
  for (const r of RECORDS) {
    let best = null;
    for (const p of r.messages) {
      if (!p.parts.length) continue;
      const own = p.option && replaced[r.engine] || pieces;
      let match = findWhole(p, own[0][0]);
      if (!match && !bare)
        for (const [piece, offset] of own) {
          const cut = findCut(p, piece);
          if (cut && (!match || cut.letters > match.letters)) match = {...cut, begin: cut.begin + offset, end: cut.end + offset};
        }
      if (!match) continue;
      const score = match.letters * (engine && r.engine !== engine && OPTIONS[r.engine] ? 0.5 : 1);
      if (!best || score > best.score) best = {...match, record: r, score};
    }
    if (best) hits.push(best);
  }
  hits.sort((a, b) => b.score - a.score);
  const top = hits[0];
  const kept = hits.filter(h => h.score >= (h.whole ? 0.5 : 0.9) * top.score || (h.whole && (h.begin < top.begin || h.end > top.end)));
  return top && !top.whole && kept.length > 8 ? [] : kept.map(h => [h.record, h.score]);
}
function search(query) {
  const text = comparable(query), code = query.toLowerCase().trim();
  if (!text) return RECORDS.map(r => [r, 0]);
  const named = RECORDS.filter(r => code.includes(r.id.toLowerCase())).map(r => [r, code === r.id.toLowerCase() ? 1e9 : 1e6]);
  let hits = named.concat(matching(text).filter(([r]) => !named.some(([n]) => n === r)));
  if (!hits.length) {
    const asked = new Set(words(query));
    for (const r of RECORDS) {
      const own = words(r.id + " " + r.patterns.join(" ") + " " + r.meaning + " " + r.tags.join(" "));
      const hit = [...asked].filter(w => own.some(o => o.includes(w))).length;
      if (hit) hits.push([r, hit / asked.size]);
    }
  }
  return hits.sort((a, b) => b[1] - a[1]);
}
function show() {
  const query = document.getElementById("query").value;
  const list = document.getElementById("results");
  list.textContent = "";
  const hits = search(query);
  document.getElementById("count").textContent = query ? hits.length + " found" : RECORDS.length + " errors";
  hits.slice(0, query ? 20 : RECORDS.length).forEach(([r], i) => {
    const item = document.createElement("li");
    if (query && i === 0) item.className = "hit";
    const link = document.createElement("a");
    link.href = r.id + ".html";
    link.textContent = r.id;
    item.append(link, " ", r.patterns[0]);
    list.append(item);
  });
}
document.getElementById("query").addEventListener("input", show);
if (location.hash.length > 1) document.getElementById("query").value = decodeURIComponent(location.hash.slice(1));
show();
)";

}  // namespace

std::vector<std::pair<std::string, std::string>> error_pages(const Catalogue& catalogue) {
  std::vector<std::pair<std::string, std::string>> pages;
  Json index = Json::array();
  std::string plain;
  for (const Json& record : catalogue.records()) {
    const std::string id = record.at("id");
    pages.emplace_back(id + ".html", page(record));
    Json patterns = Json::array({record.at("message_pattern")});
    if (record.contains("also"))
      for (const Json& text : record["also"]) patterns.push_back(text);
    index.push_back({{"id", id},
                     {"engine", record.value("engine", "")},
                     {"patterns", patterns},
                     {"meaning", record.value("meaning", "")},
                     {"tags", record.value("tags", Json::array())}});
    plain += "<li><a href=\"" + id + ".html\">" + id + "</a> " +
             escape(record.at("message_pattern").get<std::string>()) + "</li>\n";
  }
  Json options = Json::object();
  for (const char* engine : {"sglang", "vllm"}) options[engine] = catalogue.options_of(engine);
  std::string data = index.dump();
  for (size_t at = data.find("</"); at != std::string::npos; at = data.find("</", at + 3)) data.replace(at, 2, "<\\/");
  pages.emplace_back(
      "index.html",
      head("KDA errors") +
          "<h1>KDA errors: libkda, SGLang, vLLM</h1>\n<p>Paste an error message, a traceback or a code. "
          "<code>kda explain</code> answers the same in a terminal.</p>\n<textarea id=\"query\" autofocus "
          "aria-label=\"Error message\"></textarea>\n<p class=\"meta\" id=\"count\"></p>\n<ul id=\"results\">\n" +
          plain + "</ul>\n<script>\nconst RECORDS = " + data + ";\nconst OPTIONS = " + options.dump() + ";" + kScript +
          "</script>\n</body>\n</html>\n");
  return pages;
}

}  // namespace kda::doctor
