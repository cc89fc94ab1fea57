// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/cli/flags.h"

namespace lockstep::launcher {
namespace {

struct VerbText {
  std::string usage;
  std::string about;
  std::string example;
};

const std::map<std::string, VerbText>& VerbTexts() {
  static const auto* const texts = new std::map<std::string, VerbText>{
      {"run",
       {"launcher [run] [flags] job.yaml\n       launcher [run] [flags] -- command...",
        "Runs a job on this machine and follows it. Ctrl-C drains it, a second one kills it.",
        "launcher --nproc-per-node=4 examples/fashion-mnist.yaml"}},
      {"validate",
       {"launcher validate [flags] job.yaml",
        "Checks a job file and shows it with every default filled in. Runs nothing.",
        "launcher validate job.yaml -o json"}},
      {"plan",
       {"launcher plan [flags] job.yaml",
        "Shows what a job costs (memory, arithmetic, communication, time of a step) without "
        "running it.",
        "launcher plan --nproc-per-node=4 examples/fashion-mnist.yaml"}},
      {"eval",
       {"launcher eval [flags] MODEL", "Measures a saved model's loss and accuracy.",
        "launcher eval runs/fashion-mnist-1/model"}},
      {"predict",
       {"launcher predict [flags] MODEL", "Writes a saved model's labels and probabilities.",
        "launcher predict runs/fashion-mnist-1/model --inputs x.npy --out labels.jsonl"}},
      {"compare",
       {"launcher compare --a VARIANT --b VARIANT [flags] job.yaml",
        "Runs two variants of a job's plan on one micro-batch and names the first node that "
        "differs.",
        "launcher compare --a fused --b unfused examples/fashion-mnist.yaml"}},
      {"generate",
       {"launcher generate [flags] MODEL", "Lets a saved gpt go on with a text.",
        "launcher generate runs/gpt-tiny-1/model --prompt 'The licence' --tokens 300"}},
      {"submit",
       {"launcher submit [flags] job.yaml\n       launcher submit [flags] -- command...",
        "Hands a job to a coordinator and follows it. Ctrl-C only stops following.",
        "launcher submit --coordinator 127.0.0.1:7070 job.yaml"}},
      {"list", {"launcher list [flags]", "Shows the coordinator's jobs.", "launcher list -o json"}},
      {"describe",
       {"launcher describe [flags] JOB", "Shows all about a job, and why it is in its state.",
        "launcher describe fashion-mnist-1"}},
      {"logs",
       {"launcher logs [flags] JOB", "Shows what the workers of a job wrote.",
        "launcher logs -f fashion-mnist-1 --rank 0"}},
      {"cancel",
       {"launcher cancel [flags] JOB", "Stops a job: it finishes its step, saves and leaves.",
        "launcher cancel fashion-mnist-1"}},
      {"scale",
       {"launcher scale [flags] JOB WORKERS",
        "Changes how many workers a running job has; they join and leave between steps.",
        "launcher scale fashion-mnist-1 2"}},
      {"chaos",
       {"launcher chaos [flags] job.yaml",
        "Runs a job here and lets its workers or its coordinator fail, to see that it heals.",
        "launcher chaos --kill rank:2@step:50 examples/fashion-mnist.yaml"}},
      {"join",
       {"launcher join [flags]", "Makes this machine a node of a coordinator until Ctrl-C.",
        "launcher join --coordinator 127.0.0.1:7070 --slots 4"}},
      {"bench",
       {"launcher bench [flags] collectives",
        "Measures the data plane between ranks on this machine, in the columns and bus bandwidths "
        "of nccl-tests.",
        "launcher bench collectives --nproc-per-node=4 --max-bytes 256MiB"}},
      {"top",
       {"launcher top [flags] [JOB]",
        "Shows what GPUs and workers do now; on a terminal again each second until Ctrl-C, with -o "
        "once.",
        "launcher top --coordinator 127.0.0.1:7070"}},
      {"version", {"launcher version", "Shows the version.", "launcher version"}},
      {"doctor",
       {"launcher doctor [flags]",
        "Says what this host has for training on GPUs and what is missing. Exit code 1 when "
        "device: cuda cannot be used.",
        "launcher doctor"}},
      {"help", {"launcher help [VERB]", "Shows how a verb is used.", "launcher help submit"}},
  };
  return *texts;
}

std::string FlagLines(const std::string& verb) {
  std::string out = "Flags:\n";
  for (const Flag& flag : AllFlags()) {
    if (!TakesFlag(verb, flag)) continue;
    const std::string letter = flag.letter == 0 ? "    " : absl::StrFormat("-%c, ", flag.letter);
    const std::string name =
        absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value);
    absl::StrAppendFormat(&out, "  %s%-24s %s\n", letter, name, flag.help);
  }
  return out;
}

std::string ExitCodeLines() {
  std::string out = "Exit codes:\n";
  for (const ExitCodeEntry& entry : ExitCodeTable()) {
    absl::StrAppendFormat(&out, "  %-6s %s\n", entry.code, entry.meaning);
  }
  return out;
}

}  // namespace

std::string HelpText(const std::string& verb) {
  if (!verb.empty()) {
    const VerbText& text = VerbTexts().at(verb);
    return absl::StrCat("Usage: ", text.usage, "\n\n", text.about, "\n\nExample:\n  ", text.example,
                        "\n\n", FlagLines(verb), "\n", ExitCodeLines());
  }
  std::string out = absl::StrCat("Usage: ", VerbTexts().at("run").usage,
                                 "\n       launcher VERB [flags] ...\n\nVerbs:\n");
  for (const std::string& name : Verbs()) {
    absl::StrAppendFormat(&out, "  %-10s %s\n", name, VerbTexts().at(name).about);
  }
  return absl::StrCat(out, "\nExample:\n  ", VerbTexts().at("run").example,
                      "\n\n'launcher VERB --help' lists the flags of a verb.\n\n", ExitCodeLines());
}

}  // namespace lockstep::launcher
