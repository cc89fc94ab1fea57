// SPDX-License-Identifier: Apache-2.0
// The verbs that need the engine or the data plane for one answer: plan, eval, predict, generate,
// compare, bench, doctor. The launcher does not link these; it runs the worker program as a child
// that prints the answer. Thread-safety: called by main.
#ifndef LOCKSTEP_LAUNCHER_VERBS_OFFLINE_H_
#define LOCKSTEP_LAUNCHER_VERBS_OFFLINE_H_

#include "launcher/cli/arguments.h"

namespace lockstep::launcher {

// Each blocks until the answer is printed and returns the exit code.
int RunPlan(const PlanArgs& args);
int RunEval(const EvalArgs& args);
int RunPredict(const PredictArgs& args);
int RunCompare(const CompareArgs& args);
int RunGenerate(const GenerateArgs& args);
int RunBench(const BenchArgs& args);
int RunDoctor(const DoctorArgs& args);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_OFFLINE_H_
