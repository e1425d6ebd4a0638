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

// The same matching as Catalogue::search: every fixed part of the pattern, in order; then words.
const char* const kScript = R"(
const simplify = t => t.toLowerCase().replace(/["`]/g, "'").replace(/\s+/g, " ").trim();
const words = t => simplify(t).split(/[^a-z0-9_]+/).filter(w => w.length > 2);
for (const r of RECORDS)
  r.parts = r.patterns.map(p => p.split(/\{[^}]*\}/).map(simplify).filter(s => s && s !== "."));
function search(query) {
  const text = simplify(query);
  if (!text) return RECORDS.map(r => [r, 0]);
  let hits = [];
  for (const r of RECORDS) {
    let score = text === simplify(r.id) ? 1e9 : text.includes(simplify(r.id)) ? 1e6 : 0;
    for (const parts of r.parts) {
      let at = 0, letters = 0, all = parts.length > 0;
      for (const part of parts) {
        const found = text.indexOf(part, at);
        if (found < 0) { all = false; break; }
        at = found + part.length;
        letters += part.length;
      }
      if (all && (letters >= 11 || letters + 8 >= text.length)) score = Math.max(score, letters);
    }
    if (score) hits.push([r, score]);
  }
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
                     {"patterns", patterns},
                     {"meaning", record.value("meaning", "")},
                     {"tags", record.value("tags", Json::array())}});
    plain += "<li><a href=\"" + id + ".html\">" + id + "</a> " +
             escape(record.at("message_pattern").get<std::string>()) + "</li>\n";
  }
  std::string data = index.dump();
  for (size_t at = data.find("</"); at != std::string::npos; at = data.find("</", at + 3)) data.replace(at, 2, "<\\/");
  pages.emplace_back(
      "index.html",
      head("KDA errors") +
          "<h1>KDA errors: libkda, SGLang, vLLM</h1>\n<p>Paste an error message, a traceback or a code. "
          "<code>kda explain</code> answers the same in a terminal.</p>\n<textarea id=\"query\" autofocus "
          "aria-label=\"Error message\"></textarea>\n<p class=\"meta\" id=\"count\"></p>\n<ul id=\"results\">\n" +
          plain + "</ul>\n<script>\nconst RECORDS = " + data + ";" + kScript + "</script>\n</body>\n</html>\n");
  return pages;
}

}  // namespace kda::doctor
