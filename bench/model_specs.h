// SPDX-License-Identifier: Apache-2.0
// The models of the comparison with PyTorch, as specs of the engine: sizes, optimizers and samples
// as the peer's scripts have them. Thread-safety: pure functions.
#ifndef LOCKSTEP_BENCH_MODEL_SPECS_H_
#define LOCKSTEP_BENCH_MODEL_SPECS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace lockstep::bench {

// The spec of model `name` with `batch` samples (0: as many as the comparison has); nothing when
// there is no such model.
std::optional<engine::TrainSpec> ModelSpecOf(const std::string& name, int64_t batch, int threads);

// All names, separated by spaces.
std::string ModelNames();

}  // namespace lockstep::bench

#endif  // LOCKSTEP_BENCH_MODEL_SPECS_H_
