#include "study/text_table.hpp"

#include <algorithm>
#include <cctype>

namespace fourfold::study {

namespace {

// Of letters, not bytes.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

bool numeric(const TextTable& table, std::size_t column) {
  return std::all_of(table.rows.begin(), table.rows.end(), [&](const std::vector<std::string>& row) {
    const std::string& cell = row[column];
    return cell.empty() || cell == "-" || std::isdigit(static_cast<unsigned char>(cell.front())) != 0 ||
           (cell.size() > 1 && cell.front() == '-' && std::isdigit(static_cast<unsigned char>(cell[1])) != 0);
  });
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string as_text(const TextTable& table) {
  std::vector<std::size_t> widths;
  std::vector<bool> right;
  for (std::size_t c = 0; c < table.header.size(); ++c) {
    std::size_t widest = width(table.header[c]);
    for (const auto& row : table.rows) widest = std::max(widest, width(row[c]));
    widths.push_back(widest);
    right.push_back(numeric(table, c));
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string fill(widths[c] - width(cells[c]), ' ');
      text += (c > 0 ? "  " : "") + (right[c] ? fill + cells[c] : cells[c] + fill);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = table.title + "\n" + line(table.header);
  for (const auto& row : table.rows) text += line(row);
  if (!table.note.empty()) text += table.note + "\n";
  return text;
}

std::string as_markdown(const TextTable& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) {
      text += " ";
      for (const char c : one_line(cell)) text += c == '|' ? std::string("\\|") : std::string(1, c);
      text += " |";
    }
    return text + "\n";
  };
  std::string text = "## " + table.title + "\n\n" + line(table.header) + "|";
  for (std::size_t c = 0; c < table.header.size(); ++c) text += numeric(table, c) ? " ---: |" : " --- |";
  text += "\n";
  for (const auto& row : table.rows) text += line(row);
  if (!table.note.empty()) text += "\n" + table.note + "\n";
  return text + "\n";
}

std::string html_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string as_html(const TextTable& table) {
  std::string text = "<h2>" + html_escaped(table.title) + "</h2>\n<div class=\"scroll\"><table>\n<thead><tr>";
  const auto cell = [&](const char* tag, std::size_t c, const std::string& content) {
    return std::string("<") + tag + (numeric(table, c) ? " class=\"number\">" : ">") + html_escaped(content) + "</" +
           tag + ">";
  };
  for (std::size_t c = 0; c < table.header.size(); ++c) text += cell("th", c, table.header[c]);
  text += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    text += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c) text += cell("td", c, row[c]);
    text += "</tr>\n";
  }
  text += "</tbody></table></div>\n";
  if (!table.note.empty()) text += "<p>" + html_escaped(table.note) + "</p>\n";
  return text;
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    if (c > 0) line += ',';
    if (cells[c].find_first_of(",\"\n\r") == std::string::npos) {
      line += cells[c];
      continue;
    }
    line += '"';
    for (const char letter : cells[c]) line += letter == '"' ? std::string("\"\"") : std::string(1, letter);
    line += '"';
  }
  return line + "\n";
}

}  // namespace fourfold::study
