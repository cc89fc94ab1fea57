// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/output.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/agent/log_forwarder.h"
#include "launcher/agent/run_folder.h"
#include "launcher/spawner/wire.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LineSplitterTest, LinesMayComeInPieces) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  splitter.Feed("a\nb", &lines);
  EXPECT_THAT(lines, ElementsAre("a"));
  splitter.Feed("c\r\n\nd", &lines);
  EXPECT_THAT(lines, ElementsAre("a", "bc", ""));
  splitter.Finish(&lines);
  EXPECT_THAT(lines, ElementsAre("a", "bc", "", "d"));
}

TEST(LineSplitterTest, CutsEndlessLines) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  splitter.Feed(std::string(LineSplitter::kMaxLine + 5, 'x'), &lines);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].size(), LineSplitter::kMaxLine);
  splitter.Feed("\n", &lines);
  EXPECT_EQ(lines[1], "xxxxx");
}

TEST(LineSplitterTest, LinesThatAreRedrawnAreCutBetweenTwoStates) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const std::string state = "\r" + std::string(999, 'x');
  std::string all;
  for (int i = 0; i < 20; ++i) all += state;
  splitter.Feed(all, &lines);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], all.substr(0, 16001)) << "the log has all of it";
  EXPECT_TRUE(IsRedrawnOn(lines[0]));
  EXPECT_EQ(splitter.partial(), all.substr(16001));
  splitter.Feed("\r\r\n", &lines);
  EXPECT_EQ(lines[1], all.substr(16001));
  EXPECT_FALSE(IsRedrawnOn(lines[1]));
  splitter.Feed("end\r", &lines);
  splitter.Finish(&lines);
  EXPECT_EQ(lines[2], "end");
}

TEST(LastStateTest, IsWhatStandsThere) {
  EXPECT_EQ(LastState("plain"), "plain");
  EXPECT_EQ(LastState("\r 1 %\r 2 %"), " 2 %");
  EXPECT_EQ(LastState("1 %\r2 %\r"), "2 %") << "one that is written before its beginning";
  EXPECT_EQ(LastState("\r"), "");
}

TEST(RedrawnStatesTest, AreShownNowAndThen) {
  LineSplitter splitter;
  RedrawnStates states;
  std::vector<std::string> lines;
  absl::Time now = absl::UnixEpoch();
  const auto after = [&](absl::Duration time, const std::string& text) {
    splitter.Feed(text, &lines);
    now += time;
    return states.Take(splitter, now);
  };
  EXPECT_EQ(after(absl::ZeroDuration(), "no end"), "");
  EXPECT_EQ(after(absl::Minutes(1), " yet"), "") << "it is not redrawn";
  EXPECT_EQ(after(absl::ZeroDuration(), "\n\r1 %"), "");
  EXPECT_EQ(after(absl::Seconds(4), "\r2 %"), "") << "a short one is shown at its end";
  EXPECT_EQ(after(absl::Seconds(1), "\r3 %"), "3 %");
  EXPECT_EQ(after(absl::Seconds(1), "\r4 %"), "");
  EXPECT_EQ(after(absl::Seconds(5), "\r5 %\n\r6 %"), "6 %");
  EXPECT_EQ(after(absl::Seconds(5), "\ndone\n"), "");
  EXPECT_EQ(after(absl::Seconds(5), "\rof the next one"), "");
}

TEST(LastLinesTest, StderrHoldsTheReason) {
  LastLines last;
  last.Add(false, "out");
  EXPECT_THAT(last.Get(), ElementsAre("out"));
  for (int i = 0; i < 25; ++i) last.Add(true, std::to_string(i));
  EXPECT_EQ(last.Get().size(), LastLines::kLines);
  EXPECT_EQ(last.Get().front(), "5");
  EXPECT_EQ(last.Get().back(), "24");
  last.Add(true, "\r1 %\r2 %\r");
  EXPECT_EQ(last.Get().back(), "24") << "a piece of a line that goes on";
  last.Add(true, "\r98 %\r99 %");
  EXPECT_EQ(last.Get().back(), "99 %");
}

TEST(ForwardBudgetTest, FillsWithTime) {
  ForwardBudget budget(100, 10);
  const absl::Time start = absl::FromUnixSeconds(1);
  budget.Fill(start);
  EXPECT_TRUE(budget.Take(100));
  EXPECT_FALSE(budget.Take(1));
  budget.Fill(start + absl::Seconds(2));
  EXPECT_TRUE(budget.Take(20));
  EXPECT_FALSE(budget.Take(1));
}

TEST(LogForwarderTest, SaysHowManyLinesWereLeftOut) {
  LogForwarder forwarder("tiger", /*capacity=*/40, /*bytes_per_second=*/40);
  WorkerAssignment worker;
  worker.set_job_id("j");
  worker.set_slot(2);
  const absl::Time start = absl::UnixEpoch();
  forwarder.Fill(start);
  auto message = forwarder.Forward(worker, true, {"abc\xFF", "0123456789", "x"});
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->log().lines().host(), "tiger");
  EXPECT_EQ(message->log().lines().slot(), 2);
  EXPECT_TRUE(message->log().lines().is_stderr());
  EXPECT_THAT(message->log().lines().lines(),
              ElementsAre("abc?", testing::HasSubstr("[1 line is"), "x"));
  EXPECT_FALSE(forwarder.Forward(worker, false, {"y", "z"}).has_value());
  forwarder.Fill(start + absl::Seconds(1));
  message = forwarder.Forward(worker, false, {"z"});
  ASSERT_TRUE(message.has_value());
  EXPECT_THAT(message->log().lines().lines(), ElementsAre(testing::HasSubstr("[2 lines"), "z"));
}

TEST(LogForwarderTest, OfARedrawnLineComesWhatItShowsLast) {
  LogForwarder forwarder("tiger");
  forwarder.Fill(absl::UnixEpoch());
  const auto message = forwarder.Forward({}, true, {"\r1 %\r2 %\r", "\r98 %\r99 %", "plain"});
  ASSERT_TRUE(message.has_value());
  EXPECT_THAT(message->log().lines().lines(), ElementsAre("99 %", "plain"));
}

TEST(LogForwarderTest, SaysOfEachWorkerWhatItLost) {
  LogForwarder forwarder("tiger", /*capacity=*/40, /*bytes_per_second=*/40);
  WorkerAssignment loud, quiet;
  loud.set_job_id("j");
  loud.set_incarnation("1");
  loud.set_slot(3);
  quiet.set_job_id("k");
  quiet.set_incarnation("2");
  const absl::Time start = absl::UnixEpoch();
  forwarder.Fill(start);
  EXPECT_FALSE(forwarder.Ended(loud).has_value()) << "nothing is lost yet";
  ASSERT_TRUE(forwarder.Forward(loud, false, {"0123456789", "x", "y"}).has_value());
  EXPECT_FALSE(forwarder.Forward(loud, true, {"z"}).has_value());
  forwarder.Fill(start + absl::Seconds(1));
  auto message = forwarder.Forward(quiet, false, {"a", "0123456789"});
  ASSERT_TRUE(message.has_value());
  EXPECT_THAT(message->log().lines().lines(), ElementsAre("a")) << "the other one's loss";
  // What is lost at the end is said, too, however little there is room for.
  message = forwarder.Ended(loud);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->log().job_id(), "j");
  EXPECT_EQ(message->log().worker_incarnation(), "1");
  EXPECT_EQ(message->log().lines().slot(), 3);
  EXPECT_TRUE(message->log().lines().is_stderr());
  EXPECT_THAT(message->log().lines().lines(), ElementsAre(testing::HasSubstr("[3 lines are")));
  EXPECT_FALSE(forwarder.Ended(loud).has_value()) << "it is said once";
  message = forwarder.Ended(quiet);
  ASSERT_TRUE(message.has_value());
  EXPECT_THAT(message->log().lines().lines(), ElementsAre(testing::HasSubstr("[1 line is")));
}

TEST(ToUtf8Test, ReplacesWhatIsNoCharacter) {
  EXPECT_EQ(ToUtf8("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(ToUtf8("\xF0\x9F\x99\x82"), "\xF0\x9F\x99\x82");
  EXPECT_EQ(ToUtf8("a\xFF\xC3"), "a??");
  EXPECT_EQ(ToUtf8("\xC0\x80"), "??");            // overlong
  EXPECT_EQ(ToUtf8("\xED\xA0\x80"), "???");       // a surrogate
  EXPECT_EQ(ToUtf8("\xF4\x90\x80\x80"), "????");  // beyond U+10FFFF
}

TEST(LogFileTest, AFullDiskIsSaidOnce) {
  LogFile log;
  log.Use(UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)), "/dev/full");
  EXPECT_TRUE(absl::IsResourceExhausted(log.Append("x\n")));
  EXPECT_TRUE(log.Append("y\n").ok());
}

TEST(LogFileTest, LinesGoOnWhenThereIsRoomAgain) {
  LogFile log;
  const int fd = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  log.Use(UniqueFd(fd), "/dev/full");
  size_t logged = 9;
  EXPECT_TRUE(absl::IsResourceExhausted(log.Append("a\nb\n", &logged)));
  EXPECT_EQ(logged, 0u);
  EXPECT_TRUE(log.Append("c\n").ok());
  const UniqueFd room(::memfd_create("log", MFD_CLOEXEC));
  ASSERT_GE(::dup3(room.get(), fd, O_CLOEXEC), 0);
  EXPECT_TRUE(log.Append("d\n", &logged).ok());
  EXPECT_EQ(logged, 1u);
  EXPECT_TRUE(log.Append("e\n").ok());
  char text[100] = {};
  ASSERT_GT(::pread(room.get(), text, sizeof(text) - 1, 0), 0);
  EXPECT_STREQ(text, "[3 lines are missing here: the disk was full]\nd\ne\n");
}

TEST(LogFileTest, LinesThatAreMissingAreSaidAtItsEnd) {
  const UniqueFd room(::memfd_create("log", MFD_CLOEXEC));
  for (const bool kept : {false, true}) {
    LogFile log;
    const int fd = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    log.Use(UniqueFd(fd), "/dev/full");
    EXPECT_FALSE(log.Append("a\n").ok());
    if (kept) log.ForgetMissing();
    ASSERT_GE(::dup3(room.get(), fd, O_CLOEXEC), 0);
  }
  char text[100] = {};
  ASSERT_GT(::pread(room.get(), text, sizeof(text) - 1, 0), 0);
  EXPECT_STREQ(text, "[1 line is missing here: the disk was full]\n");
}

TEST(ChosenRunFolderTest, TheUsersWishesComeFirst) {
  EXPECT_EQ(ChosenRunFolder("", "", "runs/a-1"), "runs/a-1");
  EXPECT_EQ(ChosenRunFolder("", "/data", "runs/a-1"), "/data/a-1");
  EXPECT_EQ(ChosenRunFolder("here", "/data", "runs/a-1"), "here");
  EXPECT_EQ(ResolvePath("/home/u", "runs/a"), "/home/u/runs/a");
  EXPECT_EQ(ResolvePath("/home/u", "/abs"), "/abs");
}

TEST(WireTest, CommandsComeBackWhole) {
  SpawnerCommand command;
  command.id = 7;
  command.signal = 9;
  command.argv = {"a", "", "c d"};
  command.set_env = {"X=1"};
  command.cwd = "/tmp";
  const std::string text = EncodeCommand(command);
  const auto back = DecodeCommand(text);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->id, 7u);
  EXPECT_EQ(back->argv, command.argv);
  EXPECT_EQ(back->set_env, command.set_env);
  EXPECT_THAT(back->unset_env, IsEmpty());
  EXPECT_EQ(back->cwd, "/tmp");
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(DecodeCommand(text.substr(0, size)).ok()) << size;
  }
}

}  // namespace
}  // namespace lockstep::launcher
