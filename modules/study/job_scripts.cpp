#include "study/job_scripts.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"

namespace fourfold::study {

namespace {

// For a shell, whatever it holds.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// For sbatch's lines of options, which know no quotes that hold everywhere.
std::string job_name(const std::string& name) {
  std::string plain;
  for (const char c : name) plain += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ? c : '_';
  return plain;
}

std::string head(const std::string& script, const std::string& comment, const std::string& name,
                 const std::string& options) {
  return "#!/usr/bin/env bash\n# Written by fourfold study --sbatch: " + comment + "\n#SBATCH --job-name=" + name +
         "\n#SBATCH --output=%x-%j.out\n#SBATCH --open-mode=append\n" + options + "script=" + script +
         "\nroot=${FOURFOLD_ROOT:-${SLURM_SUBMIT_DIR:-$PWD}}\n"
         "# shellcheck source=/dev/null\n"
         ". \"$root/jobscripts/job.sh\" || {\n"
         "  echo \"$script: error: no $root/jobscripts/job.sh; type: . jobscripts/machines/SITE/env.sh, or submit from "
         "Fourfold's top folder\" >&2\n  exit 3\n}\n";
}

void write_file(const std::string& path, const std::string& text) {
  NewFile file(path);
  file.append(text);
  file.finish();
}

}  // namespace

std::string write_job_scripts(const Plan& plan, const std::string& folder, const std::string& deck,
                              const std::vector<std::string>& overrides) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_one(ExitCode::storage, folder + ": " + error.message());
  std::string words = quoted(deck);
  for (const std::string& word : overrides) words += " " + quoted(word);
  const std::string name = job_name(plan.study.name);
  std::string counts;
  for (const std::int64_t ranks : plan.study.ranks) {
    counts += " " + std::to_string(ranks);
    const std::string script = fmt::format("ranks-{}.sbatch", ranks);
    write_file(folder + "/" + script,
               head(script, fmt::format("the trials of {} on {} ranks.", plan.study.name, ranks),
                    fmt::format("{}-{}", name, ranks),
                    fmt::format("#SBATCH --ntasks={}\n#SBATCH --exclusive\n#SBATCH --requeue\n"
                                "#SBATCH --signal=B:USR1@180\n",
                                ranks)) +
                   fmt::format("part_of_study {} {} {}\n", quoted(plan.study.folder), ranks, words));
  }
  write_file(folder + "/report.sbatch",
             head("report.sbatch", "tables and plots.", name + "-report", "#SBATCH --ntasks=1\n") +
                 "\"$program\" report " + quoted(plan.study.folder) + "\n");
  const std::string submit = folder + "/submit.sh";
  write_file(submit,
             "#!/usr/bin/env bash\n# Written by fourfold study --sbatch: submits the study's parts, one after the "
             "other, and its report.\n#\n#   bash " +
                 submit +
                 "\n#\n# FOURFOLD_RANKS_PER_NODE: ranks on a node, where a part fills whole nodes. The same "
                 "again runs only what is missing.\nset -euo pipefail\n"
                 "here=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\n"
                 "per_node=${FOURFOLD_RANKS_PER_NODE:-0}\nprevious=\nfor ranks in" +
                 counts +
                 "; do\n"
                 "  options=(--parsable \"--ntasks=$ranks\")\n"
                 "  if [ \"$per_node\" -gt 0 ] && [ $((ranks % per_node)) -eq 0 ]; then\n"
                 "    options+=(\"--nodes=$((ranks / per_node))\" \"--ntasks-per-node=$per_node\")\n"
                 "  elif [ \"$per_node\" -gt \"$ranks\" ]; then\n"
                 "    options+=(--nodes=1 \"--ntasks-per-node=$ranks\")\n"
                 "  fi\n"
                 "  [ -z \"$previous\" ] || options+=(\"--dependency=afterany:$previous\")\n"
                 "  previous=$(sbatch \"${options[@]}\" \"$here/ranks-$ranks.sbatch\")\n"
                 "  echo \"$ranks ranks: job $previous\"\n"
                 "done\n"
                 "previous=$(sbatch --parsable \"--dependency=afterany:$previous\" \"$here/report.sbatch\")\n"
                 "echo \"report: job $previous\"\n");
  return submit;
}

}  // namespace fourfold::study
