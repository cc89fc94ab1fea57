// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/kernel_choice.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/durable_file.h"
#include "common/fd.h"
#include "common/lock_file.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/cpu/arch.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/self_check.h"
#include "engine/exec/kernel_timing.h"

namespace lockstep::engine {
namespace {

// A less capable set must be quicker by more than times differ from one measurement to the next.
constexpr double kNoise = 0.05;
// A measurement takes a twentieth of a second, and longer beside other work.
constexpr absl::Duration kLockDeadline = absl::Seconds(10);
// CPUs and builds that a file remembers, the newest ones.
constexpr size_t kMostKnown = 32;

constexpr OpClass kAll[] = {OpClass::kRows,          OpClass::kImages,
                            OpClass::kProducts,      OpClass::kAttention,
                            OpClass::kConvolutions,  OpClass::kBf16Products,
                            OpClass::kBf16Attention, OpClass::kBf16Convolutions};
static_assert(std::size(kAll) == kOpClasses);

bool IsOfBf16(OpClass op_class) { return op_class >= OpClass::kBf16Products; }

KernelChoices AllOf(Isa isa, std::string why) {
  KernelChoices choices;
  choices.of.fill({isa, {}});
  choices.why = std::move(why);
  return choices;
}

// The times of a line such as "avx2=31.2 portable=40.1"; none when they are not of `candidates`.
std::vector<KernelTime> TimesFrom(absl::string_view text, const std::vector<Isa>& candidates) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  if (parts.size() != candidates.size()) return {};
  std::vector<KernelTime> times;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<std::string> sides = absl::StrSplit(parts[i], '=');
    double microseconds = 0;
    if (sides.size() != 2 || sides[0] != Name(candidates[i]) ||
        !absl::SimpleAtod(sides[1], &microseconds) || !(microseconds > 0)) {
      return {};
    }
    times.push_back({candidates[i], microseconds});
  }
  return times;
}

// What `text` knows of `cpu`: a line for each class, which says the CPU, the class and the times of
// all candidates.
std::optional<KernelChoices> FromText(const std::string& text, const std::string& cpu,
                                      const std::vector<Isa>& usable) {
  KernelChoices choices;
  size_t known = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    if (parts.size() != 3 || parts[0] != cpu) continue;
    for (const OpClass op_class : kAll) {
      KernelChoice& choice = choices.of[static_cast<size_t>(op_class)];
      if (parts[1] != Name(op_class) || !choice.times.empty()) continue;
      choice.times = TimesFrom(parts[2], CandidatesFor(op_class, usable));
      if (choice.times.empty()) continue;
      choice.isa = QuickestOf(choice.times);
      ++known;
    }
  }
  if (known < kOpClasses) return std::nullopt;
  return choices;
}

// `text` with `choices` in front, and without the oldest ones.
std::string WithChoices(const std::string& text, const std::string& cpu,
                        const KernelChoices& choices) {
  std::string now;
  for (const OpClass op_class : kAll) {
    const auto& times = choices.of[static_cast<size_t>(op_class)].times;
    const std::string words = absl::StrJoin(times, " ", [](std::string* out, const KernelTime& t) {
      absl::StrAppend(out, Name(t.isa), "=", absl::StrFormat("%.2f", t.microseconds));
    });
    absl::StrAppend(&now, cpu, "\t", Name(op_class), "\t", words, "\n");
  }
  std::set<std::string> known = {cpu};
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    if (parts.size() != 3 || parts[0] == cpu) continue;
    if (!known.contains(parts[0]) && known.size() == kMostKnown) continue;
    known.insert(parts[0]);
    absl::StrAppend(&now, line, "\n");
  }
  return now;
}

KernelChoices Measure(const std::vector<Isa>& usable, KernelTimer timer) {
  KernelChoices choices;
  choices.why = "measured";
  for (const OpClass op_class : kAll) {
    const std::vector<Isa> candidates = CandidatesFor(op_class, usable);
    const std::vector<double> microseconds = timer(op_class, candidates);
    LS_CHECK_EQ(microseconds.size(), candidates.size());
    KernelChoice& choice = choices.of[static_cast<size_t>(op_class)];
    for (size_t i = 0; i < candidates.size(); ++i) {
      choice.times.push_back({candidates[i], microseconds[i]});
    }
    choice.isa = QuickestOf(choice.times);
  }
  return choices;
}

// The identifier that the linker gave the program, in hex; "" without one.
std::string BuildId() {
  std::string id;
  const auto find = [](dl_phdr_info* program, size_t, void* out) {
    for (int i = 0; i < program->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = program->dlpi_phdr[i];
      if (part.p_type != PT_NOTE) continue;
      const auto* at = reinterpret_cast<const char*>(program->dlpi_addr + part.p_vaddr);
      const char* const end = at + part.p_memsz;
      while (at + sizeof(ElfW(Nhdr)) <= end) {
        const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
        const char* const data = at + sizeof(*note) + (note->n_namesz + 3) / 4 * 4;
        if (note->n_type == NT_GNU_BUILD_ID) {
          *static_cast<std::string*>(out) =
              absl::BytesToHexString(absl::string_view(data, note->n_descsz));
          break;
        }
        at = data + (note->n_descsz + 3) / 4 * 4;
      }
    }
    return 1;  // the first one is the program
  };
  dl_iterate_phdr(find, &id);
  return id;
}

struct Process {
  absl::once_flag once;
  std::optional<std::string> file;  // set: kernels are measured
  KernelChoices measured;
};
Process& ThisProcess() {
  static Process process;
  return process;
}

}  // namespace

const char* Name(OpClass op_class) {
  switch (op_class) {
    case OpClass::kRows:
      return "rows";
    case OpClass::kImages:
      return "images";
    case OpClass::kProducts:
      return "products";
    case OpClass::kAttention:
      return "attention";
    case OpClass::kConvolutions:
      return "convolutions";
    case OpClass::kBf16Products:
      return "bf16 products";
    case OpClass::kBf16Attention:
      return "bf16 attention";
    case OpClass::kBf16Convolutions:
      return "bf16 convolutions";
  }
  return "?";
}

CpuTargets KernelChoices::Targets(int threads, std::optional<bool> bf16_pairs) const {
  CpuTargets targets;
  for (const OpClass op_class : kAll) {
    const Isa isa = of[static_cast<size_t>(op_class)].isa;
    targets[op_class] = {isa, threads, bf16_pairs.value_or(MultipliesPairs(isa))};
  }
  return targets;
}

std::string DescribeTargets(const CpuTargets& targets) {
  std::map<Isa, std::vector<std::string>> classes;
  for (const OpClass op_class : kAll) classes[targets[op_class].isa].emplace_back(Name(op_class));
  if (classes.size() == 1) return Name(classes.begin()->first);
  std::vector<std::string> parts;
  for (const auto& [isa, names] : classes) {
    parts.push_back(absl::StrCat(absl::StrJoin(names, "/"), " ", Name(isa)));
  }
  return absl::StrJoin(parts, ", ");
}

std::string CpuAndBuild() {
  std::string text = absl::StrFormat("%s, %s, build %s", CpuName(), CpuSignature(), BuildId());
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = ' ';
  }
  return text;
}

std::vector<Isa> CandidatesFor(OpClass op_class, const std::vector<Isa>& usable) {
  std::vector<Isa> candidates;
  for (const Isa isa : usable) {
    // It differs from AVX-512's by the instruction for pairs.
    if (isa != Isa::kAvx512Bf16 || IsOfBf16(op_class)) candidates.push_back(isa);
  }
  return candidates;
}

Isa QuickestOf(const std::vector<KernelTime>& times) {
  const auto quickest = std::min_element(
      times.begin(), times.end(),
      [](const KernelTime& a, const KernelTime& b) { return a.microseconds < b.microseconds; });
  Isa chosen = quickest->isa;
  for (const KernelTime& time : times) {
    if (time.microseconds <= quickest->microseconds * (1 + kNoise)) chosen = time.isa;
  }
  return chosen;
}

KernelChoices ReadOrMeasure(const std::string& file, const std::string& cpu,
                            const std::vector<Isa>& usable, KernelTimer timer) {
  const auto read = [&] {
    std::optional<KernelChoices> known = FromText(ReadText(file), cpu, usable);
    if (known.has_value()) known->why = absl::StrCat("as measured before (", file, ")");
    return known;
  };
  if (file.empty()) return Measure(usable, timer);
  if (std::optional<KernelChoices> known = read()) return *std::move(known);
  const absl::StatusOr<UniqueFd> lock = LockFile(file + ".lock", kLockDeadline);
  if (lock.ok()) {
    if (std::optional<KernelChoices> known = read()) return *std::move(known);
  }
  KernelChoices choices = Measure(usable, timer);
  if (!lock.ok()) {
    LS_LOG_INFO << "the choice of kernels is not kept: " << lock.status().message();
    return choices;
  }
  const absl::Status written = WriteFileDurably(file, WithChoices(ReadText(file), cpu, choices));
  if (!written.ok()) {
    LS_LOG_INFO << "the choice of kernels is not kept: " << written.message();
  }
  return choices;
}

void MeasureKernels(const std::string& file) { ThisProcess().file = file; }

absl::StatusOr<KernelChoices> ChooseKernels(const std::string& isa) {
  LS_ASSIGN_OR_RETURN(const Isa one, ChooseIsa(isa));
  if (!isa.empty()) return AllOf(one, "named");
  if (!ForcedIsa().empty()) return AllOf(one, kIsaVariable);
  Process& process = ThisProcess();
  if (!process.file.has_value()) return AllOf(one, "the best that this CPU has");
  absl::call_once(process.once, [&process] {
    process.measured = ReadOrMeasure(*process.file, CpuAndBuild(), UsableIsas(), TimeKernels);
  });
  return process.measured;
}

}  // namespace lockstep::engine
