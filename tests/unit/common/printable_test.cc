// SPDX-License-Identifier: Apache-2.0
#include "common/printable.h"

#include <gtest/gtest.h>

#include <string>

#include "common/log.h"
#include "common/random_hex.h"

namespace lockstep {
namespace {

TEST(PrintableTest, TextStaysAsItIs) {
  for (const char* text : {"", "job a-1: loss 0.5\tstep 3", "Zürich, Ελλάδα, 東京, 👍", "\\x1b"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(PrintableTest, NoByteCommandsATerminalOrBeginsALine) {
  EXPECT_EQ(Printable("a\x1b[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(Printable("one\nE 00:00:00 two\r"), "one\\nE 00:00:00 two\\r");
  EXPECT_EQ(Printable(std::string("a\0b\x7f\x08", 5)), "a\\x00b\\x7f\\x08");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");  // CSI of eight-bit terminals
}

TEST(PrintableTest, LinesStayLines) {
  EXPECT_EQ(PrintableLines("a\x1b[2Jb\n\nc\r\n"), "a\\x1b[2Jb\n\nc\\r\n");
  EXPECT_EQ(PrintableLines(""), "");
  EXPECT_EQ(PrintableLines("\n"), "\n");
}

TEST(PrintableTest, BytesThatAreNoTextAreShown) {
  EXPECT_EQ(Printable("\xff"), "\\xff");
  EXPECT_EQ(Printable("\xc3("), "\\xc3(");
  EXPECT_EQ(Printable("\xe6\x9d"), "\\xe6\\x9d");           // cut short
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");           // longer than need be
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half of a surrogate
}

TEST(PrintableTest, ALogLineIsOneLine) {
  testing::internal::CaptureStderr();
  LogLine(LogLevel::kError, "job x FAILED: \x1b]0;title\x07\nI 00:00:00.000 all is well");
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_NE(line.find("\\x1b]0;title\\x07\\nI 00"), std::string::npos) << line;
}

TEST(RandomHexTest, IsOfItsLengthAndNewEachTime) {
  const std::string one = RandomHex(32);
  EXPECT_EQ(one.size(), 64u);
  EXPECT_EQ(one.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(one, RandomHex(32));
}

}  // namespace
}  // namespace lockstep
