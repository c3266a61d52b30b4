// fourfold report FOLDER: a study's tables on the terminal, as CSV and Markdown, its plots, and one page with all of
// it.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/error.hpp"
#include "commands.hpp"
#include "deck_file.hpp"
#include "study/report.hpp"

namespace fourfold {
namespace {

struct Options {
  std::string folder;
  bool no_plots = false;
};

// jobscripts/plot_study.py of the source folder that this program was built in, or of $FOURFOLD_ROOT.
std::string plot_script() {
  std::error_code ignored;
  std::filesystem::path root;
  if (const char* given = std::getenv("FOURFOLD_ROOT")) {
    root = given;
  } else {
    root = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().parent_path().parent_path();
  }
  const std::filesystem::path script = root / "jobscripts/plot_study.py";
  return std::filesystem::exists(script, ignored) ? script.string() : "";
}

// Its exit code; -1: it could not be started.
int run_python(const std::string& script, const std::string& folder) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execlp("python3", "python3", script.c_str(), folder.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

std::vector<std::string> plots_in(const std::string& folder) {
  std::vector<std::string> plots;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".svg") plots.push_back(entry.path().string());
  }
  std::sort(plots.begin(), plots.end());
  return plots;
}

// The plots that were made now.
std::vector<std::string> plot(const Options& options) {
  if (options.no_plots) return {};
  const std::string folder = options.folder + "/plots";
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  const std::string script = plot_script();
  const int code = script.empty() ? -1 : run_python(script, options.folder);
  if (code != 0) {
    const std::string why = script.empty() ? "no jobscripts/plot_study.py; export FOURFOLD_ROOT=FOLDER of the sources"
                            : code == 127  ? "no python3 here"
                                           : "see above; Debian's package is python3-matplotlib";
    std::fputs(("fourfold report: NO PLOTS (" + why + "); tables only\n").c_str(), stderr);
  }
  return plots_in(folder);
}

int report(const Options& options) {
  if (options.folder.empty()) fail_all(ExitCode::input, "a study's FOLDER is missing");
  const study::Report report = study::read_report(options.folder);
  const std::vector<study::TextTable> tables = study::tables_of(report);
  std::string text;
  for (const study::TextTable& table : tables) text += as_text(table) + "\n";
  std::fputs(text.c_str(), stdout);
  write_report(report, tables);
  const std::vector<std::string> plots = plot(options);
  write_page(report, tables, plots);
  std::fputs((options.folder + ": report.html, report.md, table.csv, points.csv, losses.csv, " +
              std::to_string(plots.size()) + " plots in plots/ (PNG and SVG)\n")
                 .c_str(),
             stdout);
  return static_cast<int>(report.failed > 0 ? ExitCode::error : ExitCode::done);
}

}  // namespace

Run report_command(CLI::App& line) {
  const auto options = std::make_shared<Options>();
  line.add_option("FOLDER", options->folder, "a study's folder");
  line.add_flag("--no-plots", options->no_plots, "tables only");
  return [options]() -> int {
    if (is_further_copy()) return static_cast<int>(ExitCode::done);
    return report(*options);
  };
}

}  // namespace fourfold
