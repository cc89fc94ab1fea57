// SPDX-License-Identifier: Apache-2.0
// The launcher's command line as plain values. Parsing has no side effect: nothing is opened,
// printed or looked up; what the user meant, or what is wrong, comes back.
//
//   launcher job.yaml            launcher -- command...         (run here and follow)
//   launcher train.py ARGUMENTS  launcher -m MODULE ARGUMENTS   (as torchrun does)
//   launcher VERB [flags] ...    every flag: --a-b or --a_b, --flag=value or --flag value
//
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_CLI_ARGUMENTS_H_
#define LOCKSTEP_LAUNCHER_CLI_ARGUMENTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/chaos.h"
#include "launcher/cli/host_list.h"

namespace lockstep::launcher {

// How many workers a host gets.
struct ProcCount {
  enum class Kind {
    kCount,
    kAuto,  // one for each GPU, or one for each CPU core on a host without
    kCpu,   // one for each CPU core
    kGpu,   // one for each GPU
  };
  Kind kind = Kind::kCount;
  int count = 0;  // for kCount, at least 1
};

enum class Output { kTable, kJson };

// Where the coordinator is.
struct CoordinatorArgs {
  std::string address;     // empty: none named; a run starts a private one
  std::string token_file;  // empty: none
  std::string token;       // of LOCKSTEP_TOKEN, where no file is named; empty: none
  // The flags that named them, with a blank before each: what a further command needs too.
  std::string flags;
};

// What every verb takes.
struct CommonArgs {
  Output output = Output::kTable;
  bool quiet = false;     // no progress on stderr
  std::string log_level;  // empty or debug, info, warning, error
};

// A job, from a file or from the command after "--".
struct JobArgs {
  std::string job_file;
  std::optional<std::string> text;   // of job_file, where it was read already
  std::vector<std::string> command;  // exactly one of job_file and command is there
  std::string script;              // what the command runs, for the job's name; empty: the command
  std::optional<int> least_nodes;  // of --nnodes MIN:MAX
  std::vector<std::string> sets;   // --set and what other flags mean, in order
  std::optional<ProcCount> nproc_per_node;
  std::optional<int> nodes;
  bool workers_of_hosts = false;         // the hosts of a run say how many workers each has
  std::string run_dir;                   // the folder of this run; empty: runs_dir/<name>-<id>
  std::string runs_dir;                  // empty: runs
  std::vector<chaos::Injection> faults;  // that the run is to suffer
  // So many more are drawn, from steps up to chaos_steps (0: the job's, if it says them).
  int random_faults = 0;
  uint64_t chaos_seed = 1;
  int chaos_steps = 0;
  // It is this element of an array: ${LOCKSTEP_ARRAY_INDEX} is replaced in the file and in `sets`.
  std::optional<int> array_index;
};

// A run over several hosts, started with the same command on each.
struct RendezvousArgs {
  std::string endpoint;  // host:port of the host with node rank 0, which has the coordinator
  // Not known (as with torchrun's c10d): 0 on the host that the endpoint names.
  std::optional<int> node_rank = 0;
  bool plaintext = false;  // without encryption
};

// A run over several hosts that this launcher starts on each of them by ssh.
struct HostsArgs {
  std::vector<HostSlots> hosts;  // of --hosts
  std::string hostfile;          // else; a file in the form of ParseHostFile
  std::string ssh;               // the command that enters a host; empty: LOCKSTEP_SSH, or ssh
  std::string launcher;          // on the other hosts; empty: at this one's path
  // As in RendezvousArgs, of this host; empty: chosen.
  std::string endpoint;
  bool plaintext = false;
};

struct RunArgs {
  CommonArgs common;
  JobArgs job;
  CoordinatorArgs coordinator = {};  // of a rendezvous: its token
  std::optional<RendezvousArgs> rendezvous = {};
  std::optional<HostsArgs> hosts = {};  // not with a rendezvous
  std::string interfaces = {};          // of a rendezvous; empty: the host's choice
};
struct SubmitArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  JobArgs job;
  bool follow = true;  // submit, then show the job's output until it ends
  bool wait = false;   // show nothing of it, but wait until it has ended
  bool hold = false;
  std::vector<std::string> after = {};      // jobs that have to succeed before
  std::vector<std::string> after_any = {};  // and those that have to end
  std::vector<int> array = {};              // a job for each of these; empty: one job
  int array_at_once = 0;                    // of them, at most; 0: any number
};
// validate and plan look at what a run with these flags would be.
struct ValidateArgs : RunArgs {};
struct ListArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::vector<std::string> states;  // upper case; empty: all
  std::string user;                 // empty: all
};
struct NodesArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
};
struct DescribeArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string job;
};
struct LogsArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string job;
  bool follow = false;
  std::optional<int> rank;  // all ranks without it
};
struct CancelArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::vector<std::string> jobs;
  bool kill = false;  // at once, instead of a drain
};
struct FetchArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string job;
  std::string to;  // empty: the run's folder below this one
  bool logs = false;
  bool model = false;
  bool all = false;
};
struct ScaleArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string job;
  int workers = 1;
};
struct JoinArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::optional<int>
      slots;  // worker slots; without it one for each processor, or GPU where these are more
  std::string runs_dir;
  std::string state_dir;   // empty: the default
  std::string interfaces;  // empty: the host's choice
  absl::Duration orphan_grace = absl::Minutes(5);
  absl::Duration leave_grace = absl::Seconds(20);  // for workers to hand over or save
  std::map<std::string, std::string> labels = {};
  bool leave_on_sigterm = false;  // as with SIGINT; else the workers wait for the next agent
  bool as_users = false;          // jobs run as those who submitted them
  bool allow_root = false;        // root's jobs, too
};
struct PlanArgs : RunArgs {
  std::string dump = {};  // empty, text or dot
  std::string gpu = {};   // a GPU or an architecture that it is estimated for; empty: none
};
struct EvalArgs {
  CommonArgs common;
  std::string model;
  JobArgs data;  // no job_file: the data that the model's config names
  int threads = 1;
  std::string device = "cpu";  // or cuda, cuda:N
};
struct PredictArgs {
  CommonArgs common;
  std::string model;
  JobArgs data;        // as for eval
  std::string inputs;  // empty: the test split
  std::string out;     // empty: stdout
  bool probabilities = false;
  int threads = 1;
  std::string device = "cpu";  // or cuda, cuda:N
};
struct CompareArgs {
  CommonArgs common;
  JobArgs job;
  std::string a;
  std::string b;
  std::optional<double> tolerance = {};
  int step = 1;
  int shard = 0;
};
struct GenerateArgs {
  CommonArgs common;
  std::string model;
  std::string prompt;
  int64_t tokens = 200;
  double temperature = 1;
  int64_t top_k = 0;  // 0: all
  uint64_t seed = 0;
  int threads = 1;
  std::string device = "cpu";  // or cuda, cuda:N
};
struct BenchArgs {
  CommonArgs common;
  int ranks = 2;
  int shards = 2;
  int64_t min_bytes = 4;
  int64_t max_bytes = 64 << 20;
  int factor = 8;
  std::vector<std::string> operations;
  double seconds = 0.25;  // for each size of each operation
};
struct DoctorArgs {
  CommonArgs common;
};
struct TopArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string job;    // empty: all
  bool once = false;  // also on a terminal
};
struct VersionArgs {
  CommonArgs common;
};
struct DrainArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string node;
  std::string reason;
};
struct UndrainArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string node;
};
// What a launcher with --hosts starts on another host; the rest comes on its standard input.
struct GuestArgs {
  CommonArgs common;
};
// hold and release.
struct HoldArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string job;
  bool release = false;
};
struct TokenArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string action;   // create, list, renew, revoke or whoami
  std::string id;       // of revoke
  std::string user;     // of create
  std::string role;     // of create, as on the command line
  std::string note;     // of create
  std::string save_as;  // of create and renew; empty: stdout, or the token's own file
  std::optional<absl::Duration> valid_for = {};
};
struct UsageArgs {
  CommonArgs common;
  CoordinatorArgs coordinator;
  std::string user;                 // empty: all
  std::optional<absl::Time> since;  // a day (UTC); without it all that is known
};
struct HelpArgs {
  std::string verb;  // empty: the program
};

using Command =
    std::variant<RunArgs, SubmitArgs, ValidateArgs, ListArgs, NodesArgs, DescribeArgs, LogsArgs,
                 CancelArgs, FetchArgs, ScaleArgs, JoinArgs, PlanArgs, EvalArgs, PredictArgs,
                 CompareArgs, GenerateArgs, BenchArgs, DoctorArgs, TopArgs, VersionArgs, GuestArgs,
                 HelpArgs, DrainArgs, UndrainArgs, HoldArgs, UsageArgs, TokenArgs>;

// The value of an environment variable; empty when it is not set.
using Environment = std::function<std::string(const std::string& name)>;

// Parses `arguments`, without the program's name, which is `program`: under torchrun's the first
// word is a script. `environment` is asked for LOCKSTEP_COORDINATOR, LOCKSTEP_TOKEN_FILE and
// LOCKSTEP_TOKEN, and for a command for torchrun's variables (PET_NNODES and the like). Errors:
// InvalidArgument for every mistake in the usage (exit code 2), with what would be right.
absl::StatusOr<Command> ParseCommandLine(const std::vector<std::string>& arguments,
                                         const Environment& environment,
                                         const std::string& program = "launcher");

// The text of --help for a verb ("" for the program). Ends with a line feed.
std::string HelpText(const std::string& verb);

// The verbs.
const std::vector<std::string>& Verbs();

// "4", "auto", "cpu" or "gpu". Errors: InvalidArgument.
absl::StatusOr<ProcCount> ParseProcCount(const std::string& text);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_ARGUMENTS_H_
