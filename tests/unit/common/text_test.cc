// SPDX-License-Identifier: Apache-2.0
// UTF-8, JSON, and what is safe to show.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(Utf8, CharactersAndWhatIsNone) {
  int bytes = 0;
  EXPECT_EQ(DecodeUtf8("\xC3\xA4!", &bytes), 0xE4u);
  EXPECT_EQ(bytes, 2);
  for (const char* bad : {"\xFF", "\x80", "\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80"}) {
    EXPECT_EQ(DecodeUtf8(bad, &bytes), kNoCharacter);
    EXPECT_EQ(bytes, 1);
    EXPECT_EQ(FindBadText(bad), 0u);
  }
  EXPECT_EQ(ToUtf8("a\xFF\xC3"), "a??");
  EXPECT_EQ(ToUtf8("\xED\xA0\x80\xF0\x9F\x99\x82"), "???\xF0\x9F\x99\x82");
  EXPECT_EQ(CountCharacters("gr\xC3\xBC\xC3\x9F"), 4);
  EXPECT_EQ(DisplayWidth(std::string_view("gr\xC3\xBC\xC3\x9F")), 4);
  EXPECT_EQ(DisplayWidth(std::string_view("\xE6\x97\xA5\xE6\x9C\xAC")), 4);
}

TEST(Printable, ShowsWhatWouldActOnATerminal) {
  EXPECT_EQ(Printable("a\tb \xC3\xBC \xE6\x97\xA5"), "a\tb \xC3\xBC \xE6\x97\xA5");
  EXPECT_EQ(Printable("\x1b[31m\r\n\x7f"), "\\x1b[31m\\r\\n\\x7f");
  EXPECT_EQ(Printable("\xC2\x9B!"), "\\xc2\\x9b!");  // C1: a CSI of one character
  EXPECT_EQ(Printable("\xFF"), "\\xff");
}

TEST(Json, TextsAreUtf8WithoutControls) {
  EXPECT_EQ(JsonString("a\"\\\n\x7f"), "\"a\\\"\\\\\\u000a\\u007f\"");
  EXPECT_EQ(JsonString("\xC3\xA4\xF0\x9F\x8C\xB3"), "\"\xC3\xA4\xF0\x9F\x8C\xB3\"");
  EXPECT_EQ(JsonString("\xC2\x9B"), "\"\\u009b\"");
  EXPECT_EQ(JsonString("\x80\xED\xA0\x80!"), "\"\\ufffd\\ufffd\\ufffd\\ufffd!\"");
}

TEST(Json, NumbersAreTheShortestThatReadBack) {
  EXPECT_EQ(JsonNumber(0.1), "0.1");
  EXPECT_EQ(JsonNumber(5.0), "5");
  EXPECT_EQ(JsonNumber(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(JsonNumber(0.1f), "0.1");
  EXPECT_EQ(JsonNumber(INFINITY), "null");
  EXPECT_EQ(JsonNumber(std::nan("")), "null");
}

TEST(Json, ObjectsAndArrays) {
  EXPECT_EQ(JsonObject().Done(), "{}");
  EXPECT_EQ(JsonArrayOf(std::vector<int>{}), "[]");
  EXPECT_EQ(JsonObject()
                .Add("a", true)
                .Add("b\"", std::numeric_limits<uint64_t>::max())
                .Add("c", "x")
                .Raw("d", JsonArrayOf(std::vector<std::string>{"y", "z"}))
                .Add("e", -1.5)
                .Done(),
            R"({"a":true,"b\"":18446744073709551615,"c":"x","d":["y","z"],"e":-1.5})");
}

}  // namespace
}  // namespace lockstep
