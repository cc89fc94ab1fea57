// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/verb_table.h"

namespace lockstep::launcher {

const std::vector<Verb>& VerbTable() {
  static const auto* const table = new std::vector<Verb>{
      {"run", "launcher [run] [flags] job.yaml\n       launcher [run] [flags] -- command...",
       "Runs a job on this machine and follows it. Ctrl-C drains it, a second one kills it.",
       "launcher --nproc-per-node=4 examples/fashion-mnist.yaml", ParseRun},
      {"validate", "launcher validate [flags] job.yaml",
       "Checks a job file and shows it with its defaults filled in, but for those that are 0, "
       "false or "
       "empty. Runs nothing. All flags of a run are taken and checked; those that change the job "
       "show "
       "in it.",
       "launcher validate job.yaml -o json", ParseValidate},
      {"plan", "launcher plan [flags] job.yaml",
       "Shows what a job costs (memory, arithmetic, communication, time of a step) without "
       "running it. All flags of a run are taken and checked.",
       "launcher plan --nproc-per-node=4 examples/fashion-mnist.yaml", ParsePlan},
      {"eval", "launcher eval [flags] MODEL", "Measures a saved model's loss and accuracy.",
       "launcher eval runs/fashion-mnist-1/model", ParseEval},
      {"predict", "launcher predict [flags] MODEL",
       "Writes a saved model's labels and probabilities.",
       "launcher predict runs/fashion-mnist-1/model --inputs x.npy --out labels.jsonl",
       ParsePredict},
      {"compare", "launcher compare --a VARIANT --b VARIANT [flags] job.yaml",
       "Runs two variants of a job's plan on one micro-batch and names the first node that "
       "differs.",
       "launcher compare --a fused --b unfused examples/fashion-mnist.yaml", ParseCompare},
      {"generate", "launcher generate [flags] MODEL", "Lets a saved gpt go on with a text.",
       "launcher generate runs/gpt-tiny-1/model --prompt 'The licence' --tokens 300",
       ParseGenerate},
      {"submit", "launcher submit [flags] job.yaml\n       launcher submit [flags] -- command...",
       "Hands a job to a coordinator and follows it. Ctrl-C only stops following.",
       "launcher submit job.yaml", ParseSubmit},
      {"list", "launcher list [flags]", "Shows the coordinator's jobs.", "launcher list -o json",
       ParseList},
      {"nodes", "launcher nodes [flags]",
       "Shows the coordinator's nodes: what they have, which jobs they run, and which jobs leave "
       "them out.",
       "launcher nodes", ParseNodes},
      {"describe", "launcher describe [flags] JOB",
       "Shows all about a job, and why it is in its state.", "launcher describe fashion-mnist",
       ParseDescribe},
      {"logs", "launcher logs [flags] JOB", "Shows what the workers of a job wrote.",
       "launcher logs -f fashion-mnist --rank 0", ParseLogs},
      {"cancel", "launcher cancel [flags] JOB...",
       "Stops jobs: each finishes its step, saves and leaves.", "launcher cancel fashion-mnist",
       ParseCancel},
      {"fetch", "launcher fetch [flags] JOB",
       "Brings a job's model and logs from the hosts that have them to this one.",
       "launcher fetch fashion-mnist --to results", ParseFetch},
      {"scale", "launcher scale [flags] JOB WORKERS",
       "Changes how many workers a job has; they join and leave between steps. A job that was "
       "stopped for another begins again with so many.",
       "launcher scale fashion-mnist 2", ParseScale},
      {"chaos", "launcher chaos [flags] job.yaml",
       "Runs a job here and lets its workers or its coordinator fail, to see that it heals.",
       "launcher chaos --kill rank:2@step:50 examples/fashion-mnist.yaml", ParseChaos},
      {"join", "launcher join [flags]", "Makes this machine a node of a coordinator until Ctrl-C.",
       "launcher join --slots 4", ParseJoin},
      {"bench", "launcher bench [flags] collectives",
       "Measures the data plane between ranks on this machine, in the columns and bus bandwidths "
       "of nccl-tests.",
       "launcher bench collectives --nproc-per-node=4 --max-bytes 256MiB", ParseBench},
      {"doctor", "launcher doctor [flags]",
       "Says what this host has for training on GPUs and what is missing. Exit code 1 when "
       "device: cuda cannot be used.",
       "launcher doctor", ParseDoctor},
      {"top", "launcher top [flags] [JOB]",
       "Shows what GPUs and workers do now; on a terminal again each second until Ctrl-C, with -o "
       "once.",
       "launcher top", ParseTop},
      {"drain", "launcher drain [flags] NODE",
       "Empties a node: it gets no work until 'undrain', and its workers move elsewhere between "
       "two "
       "steps.",
       "launcher drain host7 --reason 'memory errors'", ParseDrain},
      {"undrain", "launcher undrain [flags] NODE",
       "Gives a node work again that was drained, or left out because it failed too often.",
       "launcher undrain host7", ParseUndrain},
      {"guest", "launcher guest",
       "Takes part in a run that a launcher with --hosts begins, which starts this by ssh and says "
       "on its standard input what is to be done.",
       "launcher --hosts a,b examples/fashion-mnist.yaml", ParseGuest},
      {"hold", "launcher hold [flags] JOB",
       "Keeps a job that waits from starting, until 'release'.", "launcher hold fashion-mnist",
       ParseHold},
      {"release", "launcher release [flags] JOB", "Lets a held job start.",
       "launcher release fashion-mnist", ParseRelease},
      {"usage", "launcher usage [flags]",
       "Shows what users' jobs have used: slots and GPUs times the hours that they had them.",
       "launcher usage --since 2026-05-01", ParseUsage},
      {"token", "launcher token create|list|renew|revoke|whoami [flags]",
       "Makes, lists, renews and revokes tokens of users and nodes at a coordinator.",
       "launcher token create --user ann --role submit --valid-for 90d", ParseToken},
      {"version", "launcher version", "Shows the version.", "launcher version", ParseVersion},
      {"help", "launcher help [VERB]", "Shows how a verb is used.", "launcher help submit",
       ParseHelp},
  };
  return *table;
}

const Verb* FindVerb(const std::string& name) {
  for (const Verb& verb : VerbTable()) {
    if (verb.name == name) return &verb;
  }
  return nullptr;
}

const std::vector<std::string>& Verbs() {
  static const auto* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const Verb& verb : VerbTable()) all->push_back(verb.name);
    return all;
  }();
  return *names;
}

}  // namespace lockstep::launcher
