// The trial table: lines of JSON in FOLDER/trials*.jsonl, of which each job of a study writes its own file.
//
//   {"trial":KEY,"attempt":1,"time":..}                       before a trial is started; "resumed":true: from a
//   checkpoint
//   {"trial":KEY,"session":{..},"time":..}                    it was stopped early after a save, and this was seen so
//   far
//   {"trial":KEY,"done":[["step_seconds",0.1],..],"time":..}  it has ended, with these columns
//   {"trial":KEY,"failed":"why","time":..}                    all ranks refused it
//
// A trial whose last line is an attempt died with its job.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fourfold::trials {

class LineFile;

using Cell = std::variant<std::int64_t, double, std::string>;
using Row = std::vector<std::pair<std::string, Cell>>;  // in the order of the columns

const Cell* find(const Row& row, const std::string& column);
// The number in a column, not a number where there is none.
double number(const Row& row, const std::string& column);
std::string text(const Row& row, const std::string& column);
// Twelve digits at most, so that tables can be read; a text as it is.
std::string cell_text(const Cell& cell);

// 16 hexadecimal digits, of all that says which trial it is.
std::string trial_key(const std::string& canonical);

struct TrialState {
  enum class Outcome { none, done, failed };
  Outcome outcome = Outcome::none;
  Row row;                            // of one that is done
  std::string message;                // of one that failed
  std::vector<std::string> sessions;  // of one that was stopped early and may go on: JSON
  std::int64_t attempts = 0;          // that ended with the job's death, one after the other
  bool died = false;                  // the last thing known is that it was begun
};

// What is known of each trial, by key. Done wins over all other lines, whichever job wrote them. Errors (Error, input,
// one rank): a line that is none of the above, with file and number.
std::map<std::string, TrialState> read_trials(const std::string& folder);

// One job's lines. Used by one rank.
class TrialTable {
 public:
  // FOLDER/trials.jsonl, or FOLDER/trials.PART.jsonl; the folder exists. Errors: LineFile's.
  TrialTable(const std::string& folder, const std::string& part);
  ~TrialTable();
  TrialTable(const TrialTable&) = delete;
  TrialTable& operator=(const TrialTable&) = delete;

  void attempt(const std::string& key, std::int64_t number, bool resumed);
  void session(const std::string& key, const std::string& json);
  void done(const std::string& key, const Row& row);
  void failed(const std::string& key, const std::string& message);

 private:
  std::unique_ptr<LineFile> file_;
};

}  // namespace fourfold::trials
