// SPDX-License-Identifier: Apache-2.0
#include "worker/profile/profile_report.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <new>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/available_memory.h"
#include "common/durable_file.h"
#include "common/json.h"
#include "common/status.h"
#include "engine/cpu/machine_peak.h"
#include "worker/text/bytes_text.h"

namespace lockstep::worker {
namespace {

// What measuring the bandwidth takes, and as much again that others may need meanwhile.
constexpr int64_t kBandwidthBytes = int64_t{256} << 20;

// One line of the table. Phases hold nodes: a phase's self time is what no node of it took.
struct Row {
  std::string kind;  // "step", "phase", "node"
  std::string name;
  std::string text;
  int64_t calls = 0;
  double total = 0;  // seconds
  double self = 0;   // seconds
  double flops = 0;  // of all calls
  double bytes = 0;  // of all calls
  double live = 0;   // bytes of the arena
  double Average() const { return calls > 0 ? total / static_cast<double>(calls) : 0; }
  double FlopRate() const { return total > 0 ? flops / total : 0; }
  double ByteRate() const { return total > 0 ? bytes / total : 0; }
};

double SortKey(const Row& row, const std::string& sort) {
  if (sort == "self") return row.self;
  if (sort == "average") return row.Average();
  if (sort == "calls") return static_cast<double>(row.calls);
  if (sort == "flops") return row.FlopRate();
  if (sort == "bytes") return row.ByteRate();
  return row.total;
}

double Seconds(int64_t nanos) { return static_cast<double>(nanos) * 1e-9; }

// Nodes of all ranks, those of one place in the plan together.
std::vector<Row> NodeRows(const std::vector<RankProfile>& ranks) {
  std::map<std::string, size_t> at;
  std::vector<Row> rows;
  for (const RankProfile& rank : ranks) {
    for (int i = 0; i < rank.nodes_size(); ++i) {
      const NodeTime& node = rank.nodes(i);
      const auto [it, fresh] = at.try_emplace(absl::StrCat(i, " ", node.text()), rows.size());
      if (fresh) {
        rows.push_back({"node",
                        node.name().empty() ? node.op() : absl::StrCat(node.op(), " ", node.name()),
                        node.text()});
      }
      Row& row = rows[it->second];
      row.calls += node.calls();
      row.total += Seconds(node.nanos());
      row.self = row.total;
      row.flops += node.flops() * static_cast<double>(node.calls());
      row.bytes += node.bytes() * static_cast<double>(node.calls());
      row.live = std::max(row.live, static_cast<double>(node.live_bytes()));
    }
  }
  return rows;
}

std::vector<Row> PhaseRows(const std::vector<RankProfile>& ranks, double node_seconds) {
  Row step{"step", "step", ""};
  std::map<std::string, Row> phases;
  std::vector<std::string> order;
  for (const RankProfile& rank : ranks) {
    step.calls += rank.steps();
    step.total += Seconds(rank.step_nanos());
    for (const PhaseTime& time : rank.phases()) {
      const auto [it, fresh] = phases.try_emplace(time.name(), Row{"phase", time.name(), ""});
      if (fresh) order.push_back(time.name());
      it->second.calls += time.calls();
      it->second.total += Seconds(time.nanos());
    }
  }
  step.self = step.total;
  std::vector<Row> rows;
  for (const std::string& name : order) {
    Row row = phases[name];
    row.self = name == "compute" ? std::max(0.0, row.total - node_seconds) : row.total;
    step.self = std::max(0.0, step.self - row.total);
    rows.push_back(row);
  }
  rows.insert(rows.begin(), step);
  return rows;
}

struct Table {
  std::vector<Row> phases;  // the step first
  std::vector<Row> nodes;
  double step_seconds = 0;  // of all ranks
  double flop_peak = 0;     // of one rank
  double byte_peak = 0;
};

Table TableOf(const std::vector<RankProfile>& ranks, const Peak& peak, const std::string& sort) {
  Table table;
  table.nodes = NodeRows(ranks);
  double node_seconds = 0;
  for (const Row& row : table.nodes) node_seconds += row.total;
  table.phases = PhaseRows(ranks, node_seconds);
  table.step_seconds = table.phases[0].total;
  table.flop_peak = peak.flops * std::max(1, ranks.empty() ? 1 : ranks[0].threads());
  table.byte_peak = peak.bytes;
  std::stable_sort(table.nodes.begin(), table.nodes.end(),
                   [&](const Row& a, const Row& b) { return SortKey(a, sort) > SortKey(b, sort); });
  return table;
}

double Share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string Line(const Row& row, const Table& table) {
  std::string line =
      absl::StrFormat("%8d %11.3f %11.3f %11.2f %6.1f", row.calls, row.total * 1e3, row.self * 1e3,
                      row.Average() * 1e6, Share(row.total, table.step_seconds));
  if (row.kind == "node") {
    absl::StrAppendFormat(&line, " %9.2f %7.2f %6.1f  %-10s", row.FlopRate() * 1e-9,
                          row.ByteRate() * 1e-9, Share(row.FlopRate(), table.flop_peak),
                          BytesText(row.live));
  } else {
    absl::StrAppendFormat(&line, " %9s %7s %6s  %-10s", "-", "-", "-", "-");
  }
  return absl::StrCat(line, " ", row.name, row.text.empty() ? "" : "  ", row.text, "\n");
}

std::string RowJson(const Row& row, const Table& table) {
  return JsonObject()
      .Add("kind", row.kind)
      .Add("name", row.name)
      .Add("node", row.text)
      .Add("calls", row.calls)
      .Add("total_seconds", row.total)
      .Add("self_seconds", row.self)
      .Add("average_seconds", row.Average())
      .Add("flops_per_second", row.FlopRate())
      .Add("bytes_per_second", row.ByteRate())
      .Add("percent_of_step", Share(row.total, table.step_seconds))
      .Add("percent_of_peak", Share(row.FlopRate(), table.flop_peak))
      .Add("live_bytes", row.live)
      .Done();
}

// Events of the trace-event format, which Perfetto and chrome://tracing read.
std::string NameEvent(std::string_view what, int pid, int lane, const std::string& name) {
  return JsonObject()
      .Add("ph", "M")
      .Add("name", what)
      .Add("pid", pid)
      .Add("tid", lane)
      .Raw("args", JsonObject().Add("name", name).Done())
      .Done();
}

// When it began, by a clock that the hosts have in common.
int64_t BeginOf(const TraceEvent& event, const RankProfile& rank) {
  return event.begin() + rank.clock_offset();
}

std::string SpanEvent(const TraceEvent& event, int pid, int64_t begin) {
  return JsonObject()
      .Add("ph", "X")
      .Add("name", event.name())
      .Add("pid", pid)
      .Add("tid", event.lane())
      .Add("ts", static_cast<double>(begin) * 1e-3)
      .Add("dur", static_cast<double>(event.nanos()) * 1e-3)
      .Raw("args", JsonObject().Add("step", event.step()).Done())
      .Done();
}

absl::StatusOr<RankProfile> ReadRankProfile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("no ", path));
  RankProfile profile;
  if (profile.ParseFromIstream(&file)) return profile;
  return absl::DataLossError(absl::StrCat(path, " is damaged"));
}

// This process may be left less than the machine has.
double BandwidthOr0() {
  if (AvailableMemory() < kBandwidthBytes) return 0;
  try {
    return engine::MeasureMemoryBandwidth();
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

std::string RankFile(const std::string& run_dir, int rank) {
  return absl::StrCat(run_dir, "/profile/rank-", rank, ".pb");
}

}  // namespace

std::string ProfileVerdict(const std::vector<RankProfile>& ranks, const Peak& peak) {
  const Table table = TableOf(ranks, peak, "total");
  if (table.step_seconds <= 0) return "no step was measured: the run has none of these steps";
  const auto share = [&](std::initializer_list<const char*> names) {
    double sum = 0;
    for (const Row& row : table.phases) {
      for (const char* name : names) sum += row.name == name ? row.total : 0;
    }
    return Share(sum, table.step_seconds);
  };
  const double data = share({"data wait"});
  const double communication = share({"reduce", "commit wait"});
  const double compute = share({"compute"});
  const double update = share({"update"});
  constexpr double kHolds = 20;  // percent
  if (data >= kHolds && data >= communication) {
    return absl::StrFormat(
        "the loader holds the step for %.0f %% of the time: raise train.data.loader.threads, or "
        "make the data cheaper to read",
        data);
  }
  if (communication >= kHolds) {
    return absl::StrFormat(
        "ranks wait for each other and for their sums for %.0f %% of the time: give each rank a "
        "core of its own, a larger global_batch or fewer workers",
        communication);
  }
  if (update >= kHolds) {
    return absl::StrFormat("the update holds the step for %.0f %% of the time", update);
  }
  if (table.nodes.empty()) return absl::StrFormat("the step computes %.0f %% of the time", compute);
  const Row& top = table.nodes[0];
  return absl::StrFormat(
      "the step computes %.0f %% of the time; the most of it is %s, %.0f %% of the step at %.0f %% "
      "of this machine's peak",
      compute, top.name, Share(top.total, table.step_seconds),
      Share(top.FlopRate(), table.flop_peak));
}

std::string ProfileText(const std::vector<RankProfile>& ranks, const Peak& peak,
                        const std::string& sort, const std::vector<int>& missing) {
  const Table table = TableOf(ranks, peak, sort);
  std::string text = absl::StrCat("profile: ", ProfileVerdict(ranks, peak), "\n\n");
  absl::StrAppendFormat(&text, "%8s %11s %11s %11s %6s %9s %7s %6s  %-10s %s\n", "CALLS",
                        "TOTAL ms", "SELF ms", "AVERAGE us", "STEP%", "GFLOP/s", "GB/s", "PEAK%",
                        "LIVE", "NAME");
  for (const Row& row : table.phases) absl::StrAppend(&text, Line(row, table));
  for (const Row& row : table.nodes) absl::StrAppend(&text, Line(row, table));
  int64_t arena = 0, dropped = 0;
  for (const RankProfile& rank : ranks) {
    arena = std::max(arena, rank.arena_bytes());
    dropped += rank.events_dropped();
  }
  absl::StrAppendFormat(
      &text,
      "\n%d ranks together; the arena's peak is %s in each; this machine's peak: %.1f GFLOP/s",
      ranks.size(), BytesText(static_cast<double>(arena)), peak.flops * 1e-9);
  if (peak.bytes > 0) absl::StrAppendFormat(&text, " and %.1f GB/s", peak.bytes * 1e-9);
  absl::StrAppend(&text, " on one thread, measured after the run\n");
  if (!missing.empty()) {
    absl::StrAppend(&text, "what these ranks measured is not in the run's folder: ",
                    absl::StrJoin(missing, ", "), "\n");
  }
  if (dropped > 0) {
    absl::StrAppend(&text, "the trace left out ", dropped,
                    " events; the table has all: measure fewer steps\n");
  }
  return text;
}

std::string ProfileJson(const std::vector<RankProfile>& ranks, const Peak& peak,
                        const std::string& sort, const std::vector<int>& missing) {
  const Table table = TableOf(ranks, peak, sort);
  JsonArray rows;
  for (const Row& row : table.phases) rows.Raw(RowJson(row, table));
  for (const Row& row : table.nodes) rows.Raw(RowJson(row, table));
  int64_t arena = 0;
  for (const RankProfile& rank : ranks) arena = std::max(arena, rank.arena_bytes());
  JsonObject object;
  object.Add("schema", 1)
      .Add("verdict", ProfileVerdict(ranks, peak))
      .Add("ranks", ranks.size())
      .Raw("missing_ranks", JsonArrayOf(missing))
      .Add("steps", ranks.empty() ? 0 : ranks[0].steps())
      .Add("arena_bytes", arena)
      .Add("peak_flops_per_second", peak.flops);
  if (peak.bytes > 0) object.Add("peak_bytes_per_second", peak.bytes);
  return object.Raw("rows", rows.Done()).Done() + "\n";
}

std::string TraceJson(const std::vector<RankProfile>& ranks) {
  int64_t start = 0;
  for (const RankProfile& rank : ranks) {
    for (const TraceEvent& event : rank.events()) {
      const int64_t begin = BeginOf(event, rank);
      if (start == 0 || begin < start) start = begin;
    }
  }
  JsonArray events;
  for (const RankProfile& rank : ranks) {
    const int pid = rank.rank();
    events.Raw(NameEvent("process_name", pid, 0, absl::StrCat("rank ", pid, " on ", rank.host())));
    events.Raw(NameEvent("thread_name", pid, 0, "compute"));
    events.Raw(NameEvent("thread_name", pid, 1, "communication"));
    int lanes = 2;
    for (const TraceEvent& event : rank.events()) lanes = std::max(lanes, event.lane() + 1);
    for (int lane = 2; lane < lanes; ++lane) {
      events.Raw(NameEvent("thread_name", pid, lane, absl::StrCat("data ", lane - 2)));
    }
    for (const TraceEvent& event : rank.events()) {
      events.Raw(SpanEvent(event, pid, BeginOf(event, rank) - start));
    }
  }
  const std::string all =
      JsonObject().Add("displayTimeUnit", "ms").Raw("traceEvents", events.Done()).Done();
  return all + "\n";
}

absl::Status WriteRankProfile(const std::string& run_dir, const RankProfile& profile) {
  std::string bytes;
  if (!profile.SerializeToString(&bytes)) return absl::InternalError("the profile is too large");
  return WriteFileDurably(RankFile(run_dir, profile.rank()), bytes);
}

RunProfile ReadProfiles(const std::string& run_dir, const std::string& job, int world) {
  RunProfile run;
  for (int rank = 0; rank < world; ++rank) {
    absl::StatusOr<RankProfile> profile = ReadRankProfile(RankFile(run_dir, rank));
    if (profile.ok() && profile->job() == job) {
      run.ranks.push_back(*std::move(profile));
    } else {
      run.missing.push_back(rank);
    }
  }
  return run;
}

absl::Status MergeProfiles(const std::string& run_dir, const std::string& job, int world,
                           const std::string& sort) {
  const RunProfile run = ReadProfiles(run_dir, job, world);
  const Peak peak{engine::MeasureFmaPeak(), BandwidthOr0()};
  LS_RETURN_IF_ERROR(
      WriteFileDurably(run_dir + "/profile.txt", ProfileText(run.ranks, peak, sort, run.missing)));
  LS_RETURN_IF_ERROR(
      WriteFileDurably(run_dir + "/profile.json", ProfileJson(run.ranks, peak, sort, run.missing)));
  return WriteFileDurably(run_dir + "/trace.json", TraceJson(run.ranks));
}

}  // namespace lockstep::worker
