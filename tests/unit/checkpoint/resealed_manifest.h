// SPDX-License-Identifier: Apache-2.0
// Manifests as another build of lockstep writes them, for tests of who reads them.
#ifndef LOCKSTEP_TESTS_UNIT_CHECKPOINT_RESEALED_MANIFEST_H_
#define LOCKSTEP_TESTS_UNIT_CHECKPOINT_RESEALED_MANIFEST_H_

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "checkpoint/sha256.h"

namespace lockstep::checkpoint {

// Returns the manifest `text` with what `change` makes of its JSON, under a hash that is right.
template <typename Change>
std::string Resealed(const std::string& text, Change change) {
  nlohmann::json whole = nlohmann::json::parse(text);
  change(whole["checkpoint"]);
  whole["sha256"] = Sha256Hex(whole["checkpoint"].dump(-1, ' ', true));
  return whole.dump();
}

// Gives the manifest at `path` a key of a later version.
inline void MakeNewer(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::ofstream(path) << Resealed(text.str(),
                                  [](nlohmann::json& body) { body["key_of_the_future"] = 1; });
}

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_TESTS_UNIT_CHECKPOINT_RESEALED_MANIFEST_H_
