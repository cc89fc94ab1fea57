// SPDX-License-Identifier: Apache-2.0
// This machine's peak of fp32 multiply-adds, measured: what a speed is a share of.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_BENCH_FMA_PEAK_H_
#define LOCKSTEP_BENCH_FMA_PEAK_H_

namespace lockstep {

// FLOP/s of one thread, the best of several runs of about 5 ms. Uses the widest vectors that the
// engine uses on this CPU.
double MeasureFmaPeak();

// FLOP/s that `threads` threads reach together over about a quarter of a second, the slow ones
// included: less than `threads` times that of one where cores are shared. REQUIRES: threads >= 1.
double MeasureFmaThroughput(int threads);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCH_FMA_PEAK_H_
