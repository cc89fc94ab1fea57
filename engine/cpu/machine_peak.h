// SPDX-License-Identifier: Apache-2.0
// This machine's peaks, measured: what a speed is a share of.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_ENGINE_CPU_MACHINE_PEAK_H_
#define LOCKSTEP_ENGINE_CPU_MACHINE_PEAK_H_

namespace lockstep::engine {

// FLOP/s of one thread, the best of several runs of about 5 ms. Uses the widest vectors that the
// engine uses on this CPU.
double MeasureFmaPeak();

// FLOP/s that `threads` threads reach together over about a quarter of a second, the slow ones
// included: less than `threads` times that of one where cores are shared. REQUIRES: threads >= 1.
double MeasureFmaThroughput(int threads);

// Bytes/s that one thread reads and writes together in a pass over 128 MiB, the best of four.
double MeasureMemoryBandwidth();

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_MACHINE_PEAK_H_
