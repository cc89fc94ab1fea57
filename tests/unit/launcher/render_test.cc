// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/signal_name.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/follow/renderer.h"
#include "launcher/follow/result.h"
#include "launcher/follow/standard_streams.h"
#include "launcher/follow/text.h"
#include "launcher/verbs/tables.h"

namespace lockstep::launcher {
namespace {

using ::testing::HasSubstr;

struct Screen {
  // What stands on the screen.
  class Sink : public TextSink {
   public:
    explicit Sink(Screen* screen) : screen_(*screen) {}
    void Out(std::string_view text) override {
      if (screen_.out_works.ok()) screen_.out += text;
    }
    void Err(std::string_view text) override { screen_.err += text; }
    size_t waiting() const override { return screen_.waiting; }
    absl::Status Flush() override { return screen_.out_works; }

   private:
    Screen& screen_;
  };
  explicit Screen(RenderOptions options)
      : renderer(options, std::make_unique<Sink>(this), &clock) {}
  void Step(int64_t step, double epoch) { Step(step, epoch, static_cast<double>(step) / 100); }
  void Step(int64_t step, double epoch, double seconds) {
    JobEvent event;
    Progress* progress = event.mutable_progress();
    progress->set_step(step);
    progress->set_total_steps(1000);
    progress->set_epoch(epoch);
    progress->set_total_epochs(5);
    progress->set_loss(0.25);
    progress->set_samples_per_second(312000);
    progress->set_train_seconds(seconds);
    renderer.Show(event);
  }
  void Log(int slot, bool is_stderr, const std::string& line) {
    JobEvent event;
    event.mutable_log()->set_slot(slot);
    event.mutable_log()->set_host("a");
    event.mutable_log()->set_is_stderr(is_stderr);
    event.mutable_log()->add_lines(line);
    renderer.Show(event);
  }
  FakeClock clock;
  std::string out, err;
  size_t waiting = 0;  // bytes
  absl::Status out_works;
  Renderer renderer;
};

TEST(RendererTest, ALostResultIsAFailureAndIsSaid) {
  Screen screen({});
  screen.out_works = absl::ResourceExhaustedError("write: No space left on device");
  screen.Log(0, false, "also in the log file");
  EXPECT_EQ(screen.err, "");
  EXPECT_EQ(screen.renderer.Finish("", 0), 0);
  EXPECT_EQ(screen.renderer.Finish("result\n", 0), 1);
  EXPECT_NE(screen.err.find("result is not on the standard output: write: No space"),
            std::string::npos)
      << screen.err;
  EXPECT_EQ(screen.renderer.Finish("result\n", 9), 9) << "the job's own code goes first";
}

TEST(RendererTest, PlainProgressComesNowAndThen) {
  Screen screen({});
  screen.Step(1, 0.01);
  EXPECT_EQ(screen.err, "");
  screen.clock.Advance(absl::Seconds(4));
  screen.Step(100, 0.5);
  EXPECT_EQ(screen.err, "");
  screen.clock.Advance(absl::Seconds(2));
  screen.Step(110, 0.55);
  EXPECT_EQ(screen.err,
            "epoch 0.55/5  step 110/1,000  loss 0.2500  312,000 samples/s  ETA 8.90 s\n");
  screen.err.clear();
  screen.Step(200, 1.0);  // the end of an epoch
  EXPECT_EQ(screen.err,
            "epoch 1.00/5  step 200/1,000  loss 0.2500  312,000 samples/s  ETA 8.00 s\n");
}

TEST(RendererTest, WhatIsLeftIsReckonedFromThisRunsSteps) {
  Screen screen({});
  // It went on from step 500; its own steps take 2 s each.
  screen.Step(500, 0.01, 0);
  screen.clock.Advance(absl::Seconds(6));
  screen.Step(500, 0.01, 0);
  EXPECT_EQ(screen.err, "epoch 0.01/5  step 500/1,000  312,000 samples/s\n") << "no loss yet";
  screen.clock.Advance(absl::Seconds(20));
  screen.Step(510, 0.02, 20);
  EXPECT_THAT(screen.err, HasSubstr("ETA 16:20"));
  // A replacement tells its own seconds, and then an older worker again.
  screen.clock.Advance(absl::Seconds(6));
  screen.Step(511, 0.02, 1);
  screen.clock.Advance(absl::Seconds(6));
  screen.err.clear();
  screen.Step(512, 0.02, 1000);
  EXPECT_THAT(screen.err, HasSubstr("ETA 16:16"));
}

TEST(RendererTest, AnOutputThatDoesNotWaitIsWaitedFor) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  const UniqueFd in(ends[0]), kept(::dup(STDERR_FILENO));
  ASSERT_EQ(::dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  ::close(ends[1]);
  std::string got;
  Thread reader("reader", [&] {
    char buffer[4096];
    pollfd ready{in.get(), POLLIN, 0};
    while (::poll(&ready, 1, -1) == 1) {
      const ssize_t n = ::read(in.get(), buffer, sizeof(buffer));
      if (n <= 0) return;
      got.append(buffer, static_cast<size_t>(n));
    }
  });
  const std::string text(1 << 20, 'x');
  StandardStreams().Err(text);
  ::dup2(kept.get(), STDERR_FILENO);
  reader.Join();
  EXPECT_EQ(got.size(), text.size());
}

TEST(RendererTest, ATerminalGetsOneLineInPlace) {
  RenderOptions options;
  options.in_place = true;
  options.columns = [] { return 30; };
  Screen screen(options);
  screen.Step(1, 0.01);
  EXPECT_EQ(screen.err, "\r\x1b[Kepoch 0.01/5  step 1/1,000  l");
  screen.err.clear();
  screen.Step(2, 0.02);  // too soon
  EXPECT_EQ(screen.err, "");
  screen.Log(1, true, "hello");
  EXPECT_EQ(screen.err, "\r\x1b[K[a:1] hello\n\r\x1b[Kepoch 0.01/5  step 1/1,000  l");
  screen.err.clear();
  EXPECT_EQ(screen.renderer.Finish("end\n", 7), 7);
  EXPECT_EQ(screen.err, "\n");
  EXPECT_EQ(screen.out, "end\n");
}

TEST(RendererTest, AProgressLineFitsTheWidthThatTheTerminalHasThen) {
  int columns = 30;
  RenderOptions options;
  options.in_place = true;
  options.columns = [&columns] { return columns; };
  Screen screen(options);
  screen.Step(1, 0.01);
  EXPECT_EQ(screen.err, "\r\x1b[Kepoch 0.01/5  step 1/1,000  l");
  screen.err.clear();
  columns = 20;
  screen.Log(0, true, "hello");
  EXPECT_EQ(screen.err, "\r\x1b[K[a:0] hello\n\r\x1b[Kepoch 0.01/5  step ");
  screen.err.clear();
  columns = 35;
  screen.clock.Advance(absl::Seconds(1));
  screen.Step(2, 0.02);
  EXPECT_EQ(screen.err, "\r\x1b[Kepoch 0.02/5  step 2/1,000  loss 0");
}

TEST(RendererTest, ProgressThatWouldWaitIsLeftOut) {
  RenderOptions options;
  options.in_place = true;
  Screen screen(options);
  screen.waiting = size_t{16} << 10;
  screen.Step(1, 0.01);
  EXPECT_EQ(screen.err, "");
  screen.Log(1, true, "hello");
  EXPECT_EQ(screen.err, "[a:1] hello\n");
  screen.Step(1000, 5);
  EXPECT_THAT(screen.err, HasSubstr("step 1,000/1,000")) << "the last one stands when all is over";
}

TEST(RendererTest, ProgressIsShownWhereALineIsOnItsWay) {
  RenderOptions options;
  options.in_place = true;
  Screen screen(options);
  screen.waiting = 200;
  screen.Step(1, 0.01);
  EXPECT_THAT(screen.err, HasSubstr("step 1/1,000"));
}

TEST(RendererTest, LinesGoWhereTheyCameFrom) {
  Screen screen({});
  screen.Log(0, false, "out");
  screen.Log(1, true, "err");
  EXPECT_EQ(screen.out, "[a:0] out\n");
  EXPECT_EQ(screen.err, "[a:1] err\n");
  screen.renderer.SetTee("0");
  screen.Log(1, false, "hidden");
  screen.renderer.SetTee("none");
  screen.Log(0, false, "hidden");
  EXPECT_EQ(screen.out, "[a:0] out\n");
}

TEST(RendererTest, NothingThatOthersWroteActsOnTheTerminal) {
  Screen screen({});
  screen.Log(0, false, "\x1b]0;title\x07 a\tb\rc\xC2\x9B");
  EXPECT_EQ(screen.out, "[a:0] \\x1b]0;title\\x07 a\tb\\rc\\xc2\\x9b\n");
  JobEvent event;
  event.set_notice("one\nline\x1b[2J");
  screen.renderer.Show(event);
  EXPECT_EQ(screen.err, "one\\nline\\x1b[2J\n");
  screen.err.clear();
  screen.renderer.Error("two\nlines\x1b");
  EXPECT_EQ(screen.err, "error: two\nlines\\x1b\n");
}

TEST(RendererTest, ColourOnlyWhereAsked) {
  RenderOptions options;
  options.color = true;
  Screen screen(options);
  screen.renderer.Error("bad");
  EXPECT_EQ(screen.err, "\x1b[1;31merror: \x1b[0mbad\n");
  Screen plain({});
  plain.renderer.Error("bad");
  EXPECT_EQ(plain.err, "error: bad\n");
}

Fault AFault() {
  Fault fault;
  fault.set_rank(2);
  fault.set_host("a");
  fault.set_pid(812);
  fault.set_cause("killed by SIGKILL");
  fault.set_signal(9);
  fault.add_last_lines("loading \"x\"");
  fault.add_victims(0);
  fault.add_victims(1);
  fault.set_generation(1);
  fault.set_detect_ms(0.5);
  return fault;
}

TEST(ResultTest, AFaultNamesTheFirstAndItsVictims) {
  EXPECT_EQ(FaultText(AFault()),
            "rank 2 failed first: killed by SIGKILL (host a, pid 812)\n"
            "  its last lines:\n"
            "  | loading \"x\"\n"
            "  its victims, which only lost their peer: ranks 0, 1\n");
}

JobStatus AStatus() {
  JobStatus status;
  status.set_job_id("mlp-1");
  status.set_name("mlp");
  status.set_state(SUCCEEDED);
  status.set_run_dir("runs/mlp-1");
  JobResult* result = status.mutable_result();
  result->set_workers(2);
  result->set_steps(1175);
  result->set_epochs(5);
  result->set_wall_seconds(1.5);
  result->set_train_seconds(1.25);
  result->set_samples_per_second(240000);
  result->set_generations(1);
  result->mutable_eval()->set_loss(0.3);
  result->mutable_eval()->set_accuracy(0.884);
  result->mutable_eval()->set_top5_accuracy(0.995);
  result->mutable_eval()->set_samples(10000);
  result->mutable_eval()->set_targets(10000);
  result->mutable_eval()->set_classes(10);
  result->add_peak_rss_bytes(100 << 20);
  result->add_peak_rss_bytes(101 << 20);
  result->set_model_path("runs/mlp-1/model/model.safetensors");
  result->set_model_sha256("ab");
  return status;
}

TEST(ResultTest, Summary) {
  EXPECT_EQ(ResultSummary(AStatus()),
            "mlp (mlp-1) succeeded\n"
            "  accuracy   88.40 % (top-5 99.50 %) of 10,000 test samples, loss 0.3000\n"
            "  trained    1,175 steps, 5 epochs, 2 workers\n"
            "  time       1.50 s, 1.25 s of them training\n"
            "  speed      240,000 samples/s\n"
            "  memory     peak by rank: 100 MiB, 101 MiB\n"
            "  model      runs/mlp-1/model/model.safetensors\n"
            "  sha256     ab\n"
            "  logs       runs/mlp-1/logs\n");
  EXPECT_THAT(ResultSummary(AStatus(), "launcher fetch mlp-1"),
              HasSubstr("\n  logs       launcher fetch mlp-1\n"));
  JobStatus alone = AStatus();
  alone.mutable_result()->set_workers(1);
  EXPECT_THAT(ResultSummary(alone), HasSubstr("1,175 steps, 5 epochs, 1 worker\n"));
}

TEST(ResultTest, TargetsAreCalledSo) {
  JobStatus status = AStatus();
  EvalResult& eval = *status.mutable_result()->mutable_eval();
  eval.set_perplexity(1.5);
  EXPECT_THAT(ResultSummary(status), HasSubstr(" of 10,000 test targets, loss "));
  eval.set_perplexity(std::nan(""));
  eval.set_samples(0);
  EXPECT_THAT(ResultSummary(status), HasSubstr(" of 0 test targets, loss "));
}

TEST(ResultTest, FiveClassesOrFewerHaveNoTop5) {
  JobStatus status = AStatus();
  EvalResult& eval = *status.mutable_result()->mutable_eval();
  eval.mutable_ema()->set_accuracy(0.9);
  eval.set_classes(5);
  EXPECT_THAT(ResultSummary(status),
              AllOf(HasSubstr("  accuracy   88.40 % of 10,000 test samples, loss 0.3000\n"),
                    HasSubstr("  average    90.00 %, loss 0.0000\n")));
  EXPECT_THAT(ResultJson(status), HasSubstr(R"("top5_accuracy":0.995)"));
  for (const int64_t classes : {0, 6}) {  // 0: the worker does not tell
    eval.set_classes(classes);
    EXPECT_THAT(ResultSummary(status),
                AllOf(HasSubstr("88.40 % (top-5 99.50 %) of"), HasSubstr("90.00 % (top-5 ")));
  }
}

TEST(ResultTest, Json) {
  JobStatus status = AStatus();
  *status.mutable_result()->add_faults() = AFault();
  status.mutable_result()->set_epochs(std::nan(""));
  EXPECT_EQ(
      ResultJson(status),
      R"({"schema":1,"job":"mlp-1","name":"mlp","state":"SUCCEEDED","reason":"","exit_code":0,)"
      R"("workers":2,"steps":1175,"epochs":null,"wall_seconds":1.5,"train_seconds":1.25,)"
      R"("samples_per_second":240000,"eval":{"loss":0.3,"accuracy":0.884,"top5_accuracy":0.995,)"
      R"("samples":10000,"targets":10000,"step":0,"epoch":0,"seconds":0,"ema":null},"generations":1,"restarts":0,"faults":[{"number":0,"rank":2,)"
      R"("host":"a","pid":812,"cause":"killed by SIGKILL","exit_code":0,"signal":9,)"
      R"("victims":[0,1],"generation":1,"detect_ms":0.5,"rendezvous_ms":0,"restore_ms":0,)"
      R"("to_next_step_ms":0,"replay_ms":0,"steps_lost":0,)"
      R"("last_lines":["loading \"x\""]}],"peak_rss_bytes":[104857600,105906176],)"
      R"("model":{"path":"runs/mlp-1/model/model.safetensors","sha256":"ab"},)"
      R"("run_dir":"runs/mlp-1"})"
      "\n");
}

TEST(ResultTest, ExitCodes) {
  JobStatus status;
  status.set_state(SUCCEEDED);
  EXPECT_EQ(ExitCodeOfJob(status), 0);
  status.set_state(CANCELLED);
  EXPECT_EQ(ExitCodeOfJob(status), 130);
  status.set_state(FAILED);
  EXPECT_EQ(ExitCodeOfJob(status), 1);
  status.mutable_result()->set_exit_code(7);
  EXPECT_EQ(ExitCodeOfJob(status), 7);
}

TEST(TextTest, NumbersReadWell) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(-1234), "-1,234");
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(ShortDuration(0.5), "0.50 s");
  EXPECT_EQ(ShortDuration(12.34), "12.3 s");
  EXPECT_EQ(ShortDuration(125), "2:05");
  EXPECT_EQ(ShortDuration(3725), "1:02:05");
  EXPECT_EQ(ShortDuration(-1), "?");
  EXPECT_EQ(ShortDuration(std::nan("")), "?");
  EXPECT_EQ(SignalName(9), "SIGKILL");
}

TEST(TablesTest, AJobThatStandsOrIsSlowedDownSaysSo) {
  DescribeJobResponse response;
  JobStatus& job = *response.mutable_status();
  job.set_job_id("j");
  job.set_state(RUNNING);
  const std::string well = DescribeText(response);
  EXPECT_THAT(well, testing::Not(testing::HasSubstr("stands")));
  EXPECT_THAT(well, testing::Not(testing::HasSubstr("slowed by")));
  job.set_run_dir("runs/x-j");
  EXPECT_THAT(DescribeText(response), testing::HasSubstr("\nfolder      runs/x-j\n"));
  EXPECT_THAT(DescribeText(response, "launcher fetch j"),
              testing::HasSubstr("\nfolder      launcher fetch j\n"));
  job.clear_run_dir();
  job.set_stall("barrier 2: rank 0 waits 1.2 s; rank 1 computes");
  job.set_straggler("rank 1 is the last at 96 of the last 100 reductions");
  EXPECT_EQ(DescribeText(response),
            absl::StrCat(well, "stands      barrier 2: rank 0 waits 1.2 s; rank 1 computes\n",
                         "slowed by   rank 1 is the last at 96 of the last 100 reductions\n"));
}

TEST(TablesTest, WhatFailuresCostIsSaidOfAJobThatHasEndedToo) {
  DescribeJobResponse response;
  Fault& fault = *response.add_faults();
  fault.set_rank(1);
  fault.set_host("a");
  fault.set_cause("exited with code 7");
  fault.set_detect_ms(2);
  fault.set_rendezvous_ms(9);
  fault.set_restore_ms(15);
  fault.set_to_next_step_ms(30);
  fault.set_replay_ms(36);
  fault.set_steps_lost(4);
  // Of one that an earlier version has seen.
  Fault& before = *response.add_faults();
  before.set_rank(2);
  before.set_host("b");
  before.set_cause("left");
  before.set_rendezvous_ms(9);
  before.set_to_next_step_ms(30);
  const std::string table =
      "FAULT  RANK  HOST  DETECT  RENDEZVOUS  RESTORE  REPLAY  STEPS  CAUSE\n"
      "1      1     a     2 ms    7 ms        6 ms     21 ms   4      exited with code 7\n"
      "2      2     b     -       9 ms        -        -       0      left\n";
  response.mutable_status()->set_state(RUNNING);
  EXPECT_THAT(DescribeText(response), testing::HasSubstr(table));
  response.mutable_status()->set_state(FAILED);
  response.mutable_status()->mutable_result()->set_state(FAILED);
  EXPECT_THAT(DescribeText(response), testing::HasSubstr(table));
  before.set_number(1042);  // those between are not kept
  EXPECT_THAT(DescribeText(response), testing::HasSubstr("\n1042   2     b "));
}

TEST(TextTest, Ages) {
  EXPECT_EQ(ShortAge(absl::Seconds(-5)), "0s");
  EXPECT_EQ(ShortAge(absl::Seconds(59.9)), "59s");
  EXPECT_EQ(ShortAge(absl::Minutes(59)), "59m");
  EXPECT_EQ(ShortAge(absl::Minutes(190)), "3h10m");
  EXPECT_EQ(ShortAge(absl::Hours(52)), "2d4h");
}

TEST(TablesTest, ADescriptionHasNameAndTimes) {
  DescribeJobResponse response;
  JobStatus& job = *response.mutable_status();
  job.set_name("mlp");
  job.mutable_submitted()->set_seconds(1000);
  job.mutable_started()->set_seconds(1060);
  job.mutable_now()->set_seconds(1180);
  const std::string text = DescribeText(response);
  EXPECT_THAT(text, testing::HasSubstr("name        mlp\n"));
  EXPECT_THAT(text, testing::HasSubstr("submitted   3m ago (1970-01-01T00:16:40Z)\n"));
  EXPECT_THAT(text, testing::HasSubstr("started     2m ago (1970-01-01T00:17:40Z)\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("ended")));
}

TEST(TablesTest, ColumnsAreAligned) {
  ListJobsResponse response;
  JobStatus* job = response.add_jobs();
  job->set_job_id("mlp-1");
  job->set_state(PENDING);
  job->set_wanted_workers(4);
  job->set_user("u");
  job->set_reason("waits for 4 slots");
  job->set_name("mlp");
  job->mutable_submitted()->set_seconds(1000);
  job->mutable_now()->set_seconds(1000 + 12 * 60 + 59);
  EXPECT_EQ(ListTable(response),
            "JOB    NAME  STATE    WORKERS  STEP  AGE  USER  REASON\n"
            "mlp-1  mlp   PENDING  0/4      -     12m  u     waits for 4 slots\n");
}

}  // namespace
}  // namespace lockstep::launcher
