// SPDX-License-Identifier: Apache-2.0
// The control plane under faults, seed by seed, in virtual time.
//
//   simulator --seed=7 --verbose        one seed, with its faults
//   simulator --seeds=1000              seeds 1 to 1000, of 3 to 50 agents
//   simulator --seed=7 --agents=4000    as many agents as that
//   simulator --list=FILE               each line "SEED [AGENTS]"; '#' begins a comment
//   simulator --except=FILE             without the seeds of that list
//   simulator --seeds=1000 --first      ends with the first seed that fails
//   simulator --seeds=100 --drains      nodes are drained and given back as well
//   simulator --seeds=100 --users       jobs have spares, are scaled and cancelled
//   simulator --seeds=100 --queue       more jobs than room, of users with priorities and quotas
//   simulator --measure --no-faults     what the coordinator's steps take of the CPU
// Exits with 1 when a seed failed, and says how to see it again.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

struct Seed {
  uint64_t seed = 0;
  int agents = 0;     // 0: as the seed says
  std::string flags;  // besides those of the command line
};

struct Arguments {
  std::vector<Seed> seeds;
  uint64_t seed = 0;
  uint64_t count = 0;
  int agents = 0;
  bool verbose = false;
  bool measure = false;
  bool first = false;
  bool faults = true;
  bool drains = false;
  bool users = false;
  bool queue = false;
};

// Lines "SEED [AGENTS [--FLAG]...]".
bool ReadSeeds(const std::string& path, std::vector<Seed>& seeds) {
  std::ifstream file(path);
  if (!file.good()) return false;
  for (std::string line; std::getline(file, line);) {
    std::stringstream words(line);
    Seed seed;
    if (!(words >> seed.seed)) continue;
    words >> seed.agents;
    std::getline(words, seed.flags);
    seeds.push_back(seed);
  }
  return true;
}

bool Parse(int argc, char** argv, Arguments& arguments) {
  std::vector<Seed> except;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (word == "--verbose") {
      arguments.verbose = true;
    } else if (word == "--measure") {
      arguments.measure = true;
    } else if (word == "--first") {
      arguments.first = true;
    } else if (word == "--drains") {
      arguments.drains = true;
    } else if (word == "--users") {
      arguments.users = true;
    } else if (word == "--queue") {
      arguments.queue = true;
    } else if (word == "--no-faults") {
      arguments.faults = false;
    } else if (absl::ConsumePrefix(&word, "--seed=")) {
      if (!absl::SimpleAtoi(word, &arguments.seed)) return false;
    } else if (absl::ConsumePrefix(&word, "--seeds=")) {
      if (!absl::SimpleAtoi(word, &arguments.count)) return false;
    } else if (absl::ConsumePrefix(&word, "--agents=")) {
      if (!absl::SimpleAtoi(word, &arguments.agents)) return false;
    } else if (absl::ConsumePrefix(&word, "--list=")) {
      if (!ReadSeeds(std::string(word), arguments.seeds)) return false;
    } else if (absl::ConsumePrefix(&word, "--except=")) {
      if (!ReadSeeds(std::string(word), except)) return false;
    } else {
      return false;
    }
  }
  if (arguments.seed == 0 && arguments.count == 0 && arguments.seeds.empty()) arguments.seed = 1;
  const uint64_t first = arguments.seed == 0 ? 1 : arguments.seed;
  const uint64_t last = first + std::max<uint64_t>(arguments.count, arguments.seed != 0);
  for (uint64_t seed = first; seed < last; ++seed) {
    const bool left_out = std::any_of(except.begin(), except.end(),
                                      [seed](const auto& each) { return each.seed == seed; });
    if (!left_out) arguments.seeds.push_back({seed, arguments.agents, ""});
  }
  return true;
}

// Small clusters are most of them: more happens to each part.
int AgentsOf(uint64_t seed) {
  Random random(seed * 7919);
  const int64_t most = random.Chance(0.7) ? 8 : (random.Chance(0.7) ? 20 : 50);
  return static_cast<int>(random.Between(3, most));
}

// Returns whether all was well.
bool RunSeed(const Seed& run, const Arguments& arguments) {
  const uint64_t seed = run.seed;
  const int agents = run.agents;
  SimulationOptions options;
  options.seed = seed;
  options.agents = agents > 0 ? agents : AgentsOf(seed);
  options.slots = options.agents > 200 ? 1 : 2 + static_cast<int>(seed % 3);
  options.verbose = arguments.verbose;
  options.measure = arguments.measure;
  options.faults = arguments.faults;
  // In a third of them a small cluster is settled as seldom as a large one.
  if (options.agents <= 200 && seed % 3 == 0) {
    options.limits.settle_spacing = absl::Microseconds(200 << (seed / 3 % 4));
  }
  options.drains = arguments.drains || absl::StrContains(run.flags, "--drains");
  options.users = arguments.users || absl::StrContains(run.flags, "--users");
  options.queue = arguments.queue || absl::StrContains(run.flags, "--queue");
  if (options.queue) QueueUsers::SetQuotas(options);
  World world(options);
  const std::string failure = world.Run();
  if (arguments.measure && world.coordinator != nullptr) {
    const int64_t steps = world.coordinator->steps();
    std::cout << "seed " << seed << ": " << options.agents << " agents, " << steps
              << " steps of the coordinator, "
              << absl::ToDoubleMicroseconds(world.coordinator->cpu()) /
                     static_cast<double>(std::max<int64_t>(1, steps))
              << " us each\n";
  }
  if (failure.empty()) return true;
  std::cout << "seed " << seed << " (" << options.agents << " agents) " << failure
            << "\n  again with: simulator --seed=" << seed << " --agents=" << options.agents
            << (options.drains ? " --drains" : "") << (options.users ? " --users" : "")
            << (options.queue ? " --queue" : "") << (options.faults ? "" : " --no-faults")
            << " --verbose\n";
  return false;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, arguments)) {
    std::cerr
        << "usage: simulator [--seed=N] [--seeds=M] [--agents=K] [--list=FILE] [--except=FILE] "
           "[--verbose] [--measure] [--no-faults] [--first] [--drains] [--users] [--queue]\n";
    return 2;
  }
  const auto began = std::chrono::steady_clock::now();
  size_t ran = 0, failed = 0;
  for (const Seed& seed : arguments.seeds) {
    if (arguments.first && failed > 0) break;
    ++ran;
    failed += !RunSeed(seed, arguments);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::cout << ran << " seeds, " << failed << " failed, " << took.count() << " s\n";
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::simulation

int main(int argc, char** argv) { return lockstep::simulation::Main(argc, argv); }
