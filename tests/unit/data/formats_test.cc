// SPDX-License-Identifier: Apache-2.0
// CIFAR-10's binary files, .npy arrays and CSV tables as data sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "data/cifar.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/npy.h"
#include "data/npy_dataset.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FormatsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "formats-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name + "/";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + name, std::ios::binary) << bytes;
    return folder_ + name;
  }
  template <typename T>
  std::string WriteNpy(const std::string& name, NpyType type, const std::vector<int64_t>& shape,
                       const std::vector<T>& values) {
    return Write(name, FormatNpyHeader(type, shape) +
                           std::string(reinterpret_cast<const char*>(values.data()),
                                       values.size() * sizeof(T)));
  }
  std::string folder_;
};

struct Read {
  std::vector<float> inputs;
  std::vector<int32_t> labels;
};
Read ReadSamples(const Dataset& dataset, const std::vector<int64_t>& indices) {
  Read read;
  read.inputs.resize(indices.size() * static_cast<size_t>(dataset.fields()[0].elements()));
  read.labels.resize(indices.size());
  void* const fields[] = {read.inputs.data(), read.labels.data()};
  EXPECT_TRUE(dataset.ReadBatch({indices}, fields).ok());
  return read;
}

std::string CifarRecord(int label, int red, int green, int blue) {
  return std::string(1, static_cast<char>(label)) + std::string(1024, static_cast<char>(red)) +
         std::string(1024, static_cast<char>(green)) + std::string(1024, static_cast<char>(blue));
}

TEST_F(FormatsTest, CifarIsReadOverItsFilesAndNormalisedByChannel) {
  for (int i = 1; i <= 5; ++i) {
    Write("data_batch_" + std::to_string(i) + ".bin",
          CifarRecord(i, 10 * i, 0, 255) + CifarRecord(9 - i, 0, 20 * i, 0));
  }
  Write("test_batch.bin", CifarRecord(7, 1, 2, 3));
  const Cifar10Source source{folder_, {0.5, 0.25, 0}, {0.5, 0.5, 2}};
  const auto train = Open(source, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->size(), 10);
  EXPECT_EQ((*train)->classes(), 10);
  EXPECT_EQ((*train)->fields(), ClassificationFields({3, 32, 32}, 10));
  const Read read = ReadSamples(**train, {5, 6});  // the second of file 3, the first of file 4
  EXPECT_THAT(read.labels, ElementsAre(6, 4));
  EXPECT_NEAR(read.inputs[0], (0 - 0.5) / 0.5, 1e-6);
  EXPECT_NEAR(read.inputs[1024], (60 / 255.0 - 0.25) / 0.5, 1e-6);
  EXPECT_NEAR(read.inputs[3072], (40 / 255.0 - 0.5) / 0.5, 1e-6);
  EXPECT_NEAR(read.inputs[3072 + 3071], 1 / 2.0, 1e-6);
  const auto test = Open(source, Split::kTest);
  ASSERT_TRUE(test.ok());
  EXPECT_THAT(ReadSamples(**test, {0}).labels, ElementsAre(7));
}

TEST_F(FormatsTest, CifarSaysWhatIsWrongWhere) {
  const auto missing = Open(Cifar10Source{folder_, {}, {}}, Split::kTrain);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("data.cifar10.path"));
  Write("test_batch.bin", CifarRecord(3, 1, 2, 3) + CifarRecord(11, 1, 2, 3));
  const auto label = Open(Cifar10Source{folder_, {}, {}}, Split::kTest);
  EXPECT_THAT(std::string(label.status().message()), HasSubstr("label 11 at offset 3073"));
  Write("test_batch.bin", CifarRecord(3, 1, 2, 3) + "x");
  const auto length = Open(Cifar10Source{folder_, {}, {}}, Split::kTest);
  EXPECT_EQ(length.status().code(), absl::StatusCode::kDataLoss);
  Write("test_batch.bin", CifarRecord(3, 1, 2, 3));
  const auto channels = Open(Cifar10Source{folder_, {0.5, 0.5}, {}}, Split::kTest);
  EXPECT_EQ(channels.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FormatsTest, NpyArraysOfEveryType) {
  NpySource source;
  source.train_inputs = WriteNpy<float>("x.npy", NpyType::kFloat32, {3, 2}, {1, 2, 3, 4, 5, 6});
  source.train_labels = WriteNpy<int64_t>("y.npy", NpyType::kInt64, {3}, {0, 4, 1});
  source.test_inputs = WriteNpy<float>("tx.npy", NpyType::kFloat32, {2, 2}, {0, 1, 0.2F, 0.4F});
  source.test_labels = WriteNpy<uint8_t>("ty.npy", NpyType::kUInt8, {2}, {2, 3});
  source.mean = {1};
  source.std = {2};
  const auto train = Open(source, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->classes(), 5);
  const Read read = ReadSamples(**train, {2, 0});
  EXPECT_THAT(read.labels, ElementsAre(1, 0));
  EXPECT_THAT(read.inputs, ElementsAre(2, 2.5, 0, 0.5));
  const auto test = Open(source, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ((*test)->classes(), 5);  // the training labels say it
  EXPECT_NEAR(ReadSamples(**test, {1}).inputs[0], (0.2 - 1) / 2, 1e-6);
  source.train_inputs = WriteNpy<int64_t>("x8.npy", NpyType::kInt64, {3, 1}, {7, -8, 9});
  EXPECT_THAT(ReadSamples(**Open(source, Split::kTrain), {1}).inputs, ElementsAre(-4.5));
  const auto alone = OpenNpyInputs(source.test_inputs, source);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ((*alone)->size(), 2);
  // Bytes are pixels.
  source.train_inputs = WriteNpy<uint8_t>("x1.npy", NpyType::kUInt8, {3, 2}, {0, 1, 2, 3, 4, 5});
  source.test_inputs = WriteNpy<uint8_t>("tx1.npy", NpyType::kUInt8, {2, 2}, {0, 255, 51, 102});
  EXPECT_NEAR(ReadSamples(**Open(source, Split::kTest), {1}).inputs[0], (0.2 - 1) / 2, 1e-6);
}

// Only one of them would be divided by 255.
TEST_F(FormatsTest, BytesOfOneSplitAndNumbersOfTheOtherAreRefused) {
  NpySource source;
  source.train_labels = WriteNpy<int64_t>("y.npy", NpyType::kInt64, {2}, {0, 1});
  source.test_labels = source.train_labels;
  const std::string bytes = WriteNpy<uint8_t>("b.npy", NpyType::kUInt8, {2, 1}, {3, 4});
  const std::string whole = WriteNpy<int64_t>("i.npy", NpyType::kInt64, {2, 1}, {3, 4});
  const std::string real = WriteNpy<double>("d.npy", NpyType::kFloat64, {2, 1}, {3, 4});
  const auto test = [&source](const std::string& train_inputs, const std::string& test_inputs) {
    source.train_inputs = train_inputs;
    source.test_inputs = test_inputs;
    return Open(source, Split::kTest).status();
  };
  const absl::Status one = test(whole, bytes);
  EXPECT_EQ(one.code(), absl::StatusCode::kInvalidArgument) << one;
  EXPECT_THAT(std::string(one.message()), HasSubstr("i.npy is int64 and " + bytes +
                                                    " uint8, which alone would be divided by "
                                                    "255: save both alike"));
  EXPECT_THAT(std::string(test(bytes, real).message()), HasSubstr("b.npy is uint8 and"));
  EXPECT_TRUE(test(bytes, bytes).ok());
  EXPECT_TRUE(test(whole, real).ok());
  EXPECT_TRUE(test(folder_ + "gone.npy", bytes).ok());
  EXPECT_TRUE(test("", bytes).ok());
  // How many classes there are says nothing of it.
  source.classes = 2;
  EXPECT_FALSE(test(whole, bytes).ok());
}

TEST_F(FormatsTest, NpyErrorsNameTheFile) {
  NpySource source;
  source.train_inputs = WriteNpy<float>("x.npy", NpyType::kFloat32, {2, 1}, {1, 2});
  source.train_labels = WriteNpy<int64_t>("y.npy", NpyType::kInt64, {3}, {0, 4, 1});
  EXPECT_THAT(std::string(Open(source, Split::kTrain).status().message()),
              HasSubstr("y.npy has 3"));
  source.train_labels = WriteNpy<int64_t>("y.npy", NpyType::kInt64, {2}, {0, -4});
  EXPECT_THAT(std::string(Open(source, Split::kTrain).status().message()),
              HasSubstr("label -4 of sample 1"));
  source.train_labels = WriteNpy<float>("y.npy", NpyType::kFloat32, {2}, {0, 1});
  EXPECT_THAT(std::string(Open(source, Split::kTrain).status().message()),
              HasSubstr("labels must be uint8, int32 or int64, not float32"));
  EXPECT_EQ(Open(source, Split::kTest).status().code(), absl::StatusCode::kNotFound);
}

TEST(CsvTest, FindsHeaderAndLabel) {
  const auto last = ParseCsv("a,b,c\n1,2,0\n3,4,1\r\n\n", "-1", "auto");
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_THAT(last->names, ElementsAre("a", "b", "c"));
  EXPECT_THAT(last->labels, ElementsAre(0, 1));
  EXPECT_THAT(last->values, ElementsAre(1, 2, 3, 4));
  const auto named = ParseCsv("a,\"the label\",c\n1,2,0.5\n 3 ,\"4\",1", "the label", "auto");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(named->labels, ElementsAre(2, 4));
  EXPECT_THAT(named->values, ElementsAre(1, 0.5, 3, 1));
  const auto plain = ParseCsv("0,2.5\n1,-1e3\n", "0", "auto");
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(plain->names.empty());
  EXPECT_THAT(plain->values, ElementsAre(2.5, -1000));
  EXPECT_EQ(ParseCsv("1,2\n3,4\n", "0", "yes")->labels.size(), 1u);
  // As spreadsheets write it.
  EXPECT_EQ(ParseCsv("\xEF\xBB\xBF"
                     "1,2\n3,4\n",
                     "0", "auto")
                ->labels.size(),
            2u);
  EXPECT_THAT(ParseCsv("\xEF\xBB\xBF"
                       "a,b\n3,4\n",
                       "a", "auto")
                  ->labels,
              ElementsAre(3));
}

TEST(CsvTest, AFirstLineOfNumbersAndOtherTextIsNoHeaderByItself) {
  for (const std::string line : {"1.5,,0", "1.5,nan,0", "inf,2,0", "x,1e400,0", "x,1,y"}) {
    const absl::Status status = ParseCsv(line + "\n2,3,1\n", "-1", "auto").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << line;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("line 1 is neither all names nor all numbers: say in data.csv.header"))
        << line;
    EXPECT_EQ(ParseCsv(line + "\n2,3,1\n", "-1", "yes")->labels.size(), 1u) << line;
  }
  // The index that pandas writes has no name.
  EXPECT_EQ(ParseCsv(",x,y\n2,3,1\n", "-1", "auto")->labels.size(), 1u);
  EXPECT_THAT(std::string(ParseCsv("1.5,1e400,0\n", "-1", "auto").status().message()),
              HasSubstr("line 1, column 2 is '1e400': too large for fp32"));
  EXPECT_THAT(std::string(ParseCsv("\n1.5,,0\n", "-1", "auto").status().message()),
              HasSubstr("line 2 is neither"));
}

// pandas names the columns of an array so.
TEST(CsvTest, AFirstLineThatCountsItsColumnsMayBeAHeader) {
  for (const std::string line : {"0,1", "0,1,2", "\"0\",\"1\",\"2\",\"3\""}) {
    const std::string text = line + "\n" + line + "\n";
    const absl::Status status = ParseCsv(text, "-1", "auto").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << line;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("line 1 counts its columns from 0, as a header or a sample may: say in "
                          "data.csv.header whether it is a header, yes or no"))
        << line;
    EXPECT_EQ(ParseCsv(text, "-1", "yes")->labels.size(), 1u) << line;
    EXPECT_EQ(ParseCsv(text, "-1", "no")->labels.size(), 2u) << line;
  }
  EXPECT_THAT(ParseCsv("0,1,2\n5,6,7\n", "0", "yes")->names, ElementsAre("0", "1", "2"));
  for (const std::string line : {"1,2,3", "0,1.0,2", "0,1,3", "0,1,1"}) {
    EXPECT_EQ(ParseCsv(line + "\n4,5,6\n", "-1", "auto")->labels.size(), 2u) << line;
  }
}

TEST(CsvTest, NumbersCloseToZeroAreZero) {
  const auto table = ParseCsv("1e-400,-1e-400,1e-310,1e-46,1e-40,0\n", "-1", "auto");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->values, ElementsAre(0, 0, 0, 0, 1e-40f));
}

TEST(CsvTest, QuotesInAQuotedNameAreDoubled) {
  const auto table = ParseCsv("\"a \"\"b\"\"\",\"\"\"c\",y\n1,2,0\n", "\"c", "auto");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->names, ElementsAre("a \"b\"", "\"c", "y"));
  EXPECT_THAT(table->labels, ElementsAre(2));
}

// A model keeps the names, in JSON, and compares them with those of the data that it is given.
TEST(CsvTest, NamesAreUtf8) {
  const auto latin = ParseCsv(
      "a,gr\xF6\xDF"
      "e,y\n1,2,0\n",
      "-1", "auto");
  ASSERT_TRUE(latin.ok()) << latin.status();
  EXPECT_THAT(latin->names, ElementsAre("a", "gr\\xf6\\xdfe", "y"));
  const auto utf8 = ParseCsv(
      "a,gr\xC3\xB6\xC3\x9F"
      "e,y\n1,2,0\n",
      "-1", "auto");
  ASSERT_TRUE(utf8.ok()) << utf8.status();
  EXPECT_THAT(utf8->names, ElementsAre("a",
                                       "gr\xC3\xB6\xC3\x9F"
                                       "e",
                                       "y"));
}

TEST(CsvTest, SaysWhatIsWrongWhere) {
  const auto error = [](const char* text, const char* label = "-1", const char* header = "auto") {
    return std::string(ParseCsv(text, label, header).status().message());
  };
  EXPECT_THAT(error("1,2,0\n3,1\n"), HasSubstr("line 2 has 2 columns"));
  EXPECT_THAT(error("1,2,0\n3,x,1\n"), HasSubstr("line 2, column 2 is 'x': expected a number"));
  EXPECT_THAT(error("1,2,0\n3,1e39,1\n"), HasSubstr("is '1e39': too large for fp32"));
  EXPECT_THAT(error("1,2,0\n3,-1e400,1\n"), HasSubstr("is '-1e400': too large for fp32"));
  EXPECT_THAT(error("1,2,0\n3,inf,1\n"), HasSubstr("is 'inf': expected a number"));
  EXPECT_THAT(error("1,2,0\n3,1e-400x,1\n"), HasSubstr("is '1e-400x': expected a number"));
  EXPECT_THAT(error("1,2,0\n3,4,1e400\n"), HasSubstr("whole number"));
  EXPECT_THAT(error("1,2,0\n3,4,1.5\n"), HasSubstr("whole number"));
  EXPECT_THAT(error("1,2,0\n3,4,\xE9t\x1b\n"),
              HasSubstr("line 2, column 3 is '\\xe9t\\x1b': a label must be a whole number"));
  EXPECT_THAT(error("1,2,0\n3,4,16777216\n"), HasSubstr("from 0 to 16777215"));
  EXPECT_THAT(error("1,nan,0\n", "-1", "no"), HasSubstr("line 1, column 2"));
  EXPECT_THAT(error("a,b\n"), HasSubstr("no sample"));
  EXPECT_THAT(error(""), HasSubstr("no sample"));
  EXPECT_THAT(error("1\n"), HasSubstr("at least 2"));
  EXPECT_THAT(error("a;b\n1;2\n"), HasSubstr("1 column; at least 2 are needed, with commas"));
  EXPECT_THAT(error("a,b\n1,2\n", "c"), HasSubstr("no column 'c'"));
  EXPECT_THAT(error("a,y,b,y\n1,2,3,4\n", "y"),
              HasSubstr("'y' stands twice in the header, over the columns 1 and 3 (from 0)"));
  EXPECT_EQ(error("a,y,b,y\n1,2,3,4\n", "3"), "");
  EXPECT_THAT(error("a,b\r1,2\r3,4\r"), HasSubstr("line 1 has a CR in its middle"));
  EXPECT_THAT(error("a,b\n1,2\r3,4\n"), HasSubstr("line 2 has a CR in its middle"));
  EXPECT_THAT(error("a,b\r\t 1,2\r\n"), HasSubstr("line 1 has a CR in its middle"));
  EXPECT_THAT(error("1,2\r\"3\",4\n"), HasSubstr("line 1 has a CR in its middle"));
  EXPECT_EQ(error("\"a\rx\",b\r\n1,2\r\n"), "");
  // As of two tables that lines of CR LF end, side by side.
  EXPECT_EQ(error("a,b\r,c\r\n1,2\r,3\r\n4,5 \r\r ,6\r\n"), "");
  for (const char* mark : {"\xFF\xFE", "\xFE\xFF"}) {
    EXPECT_THAT(error((std::string(mark) + "a,b\n").c_str()), HasSubstr("UTF-16"));
  }
}

TEST_F(FormatsTest, APackedTableIsNotRead) {
  CsvSource source;
  source.train = Write("train.csv.gz", std::string("\x1f\x8b\x08\x00,1\n", 7));
  EXPECT_THAT(std::string(Open(source, Split::kTrain).status().message()),
              HasSubstr("train.csv.gz is packed by gzip: unpack it"));
}

TEST_F(FormatsTest, CsvTablesAsDataSets) {
  CsvSource source;
  source.train = Write("train.csv", "x,y,label\n1,2,0\n3,4,2\n");
  source.test = Write("test.csv", "x,y,label\n5,6,1\n");
  source.label = "label";
  const auto train = Open(source, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->fields(), ClassificationFields({2}, 3));
  EXPECT_GE((*train)->own_bytes(), 4u * 4 + 2 * 4) << "four numbers, two labels";
  const auto test = Open(source, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ((*test)->classes(), 3);
  EXPECT_THAT(ReadSamples(**test, {0}).inputs, ElementsAre(5, 6));
  source.test = Write("test.csv", "label,x,y\n1,5,6\n");
  EXPECT_TRUE(Open(source, Split::kTest).ok()) << "the label may be anywhere";
  source.label = "-1";
  source.test = Write("test.csv", "x,y,target\n5,6,1\n");
  EXPECT_TRUE(Open(source, Split::kTest).ok()) << "and be called anything";
  source.label = "label";
  source.test = Write("test.csv", "y,x,label\n5,6,1\n");
  EXPECT_THAT(std::string(Open(source, Split::kTest).status().message()),
              HasSubstr("are not named as those of"));
  source.test = Write("test.csv", "5,1\n");
  source.label = "-1";
  EXPECT_THAT(std::string(Open(source, Split::kTest).status().message()), HasSubstr("features"));
}

class NpyTokensTest : public FormatsTest {
 protected:
  // Two samples of three tokens, the second padded with 0.
  NpySource Source(const std::vector<int64_t>& label_shape, const std::vector<int32_t>& labels) {
    NpySource source;
    source.train_inputs = WriteNpy<int64_t>("x.npy", NpyType::kInt64, {2, 3}, {5, 1, 2, 9, 0, 0});
    source.train_labels = WriteNpy<int32_t>("y.npy", NpyType::kInt32, label_shape, labels);
    source.vocab = 10;
    return source;
  }
};

TEST_F(NpyTokensTest, OneLabelForEachSampleAndPadding) {
  NpySource source = Source({2}, {1, 2});
  source.padding = 0;
  const auto dataset = OpenNpy(source, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ((*dataset)->fields().size(), 3u);
  EXPECT_EQ((*dataset)->fields()[0].name, "tokens");
  EXPECT_EQ((*dataset)->fields()[0].limit, 10);
  EXPECT_EQ((*dataset)->fields()[1].name, "lengths");
  EXPECT_EQ((*dataset)->classes(), 3);
  int32_t tokens[6], lengths[2], labels[2];
  void* const fields[] = {tokens, lengths, labels};
  const int64_t indices[] = {1, 0};
  ASSERT_TRUE((*dataset)->ReadBatch({indices}, fields).ok());
  EXPECT_THAT(tokens, ElementsAre(9, 0, 0, 5, 1, 2));
  EXPECT_THAT(lengths, ElementsAre(1, 3));
  EXPECT_THAT(labels, ElementsAre(2, 1));
}

TEST_F(NpyTokensTest, OneLabelForEachTokenOfWhichNegativeOnesAreNoTargets) {
  const auto dataset = OpenNpy(Source({2, 3}, {-100, 4, -1, 9, 0, -100}), Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->classes(), 10);
  int32_t tokens[3], labels[3];
  void* const fields[] = {tokens, labels};
  const int64_t indices[] = {0};
  ASSERT_TRUE((*dataset)->ReadBatch({indices}, fields).ok());
  EXPECT_THAT(tokens, ElementsAre(5, 1, 2));
  EXPECT_THAT(labels, ElementsAre(-1, 4, -1));
}

TEST_F(NpyTokensTest, InputsAloneHaveTheLabelsThatTheModelTakes) {
  const NpySource source = Source({2}, {1, 2});
  const auto one = OpenNpyInputs(source.train_inputs, source);
  const auto each = OpenNpyInputs(source.train_inputs, source, /*each_token=*/true);
  ASSERT_TRUE(one.ok() && each.ok());
  EXPECT_THAT((*one)->fields().back().shape, ElementsAre());
  EXPECT_THAT((*each)->fields().back().shape, ElementsAre(3));
  int32_t tokens[3], labels[3] = {7, 7, 7};
  void* const fields[] = {tokens, labels};
  const int64_t indices[] = {1};
  ASSERT_TRUE((*each)->ReadBatch({indices}, fields).ok());
  EXPECT_THAT(tokens, ElementsAre(9, 0, 0));
  EXPECT_THAT(labels, ElementsAre(0, 0, 0));
}

// As where a model says them, which may have come here without what it learnt from.
TEST_F(NpyTokensTest, WhoKnowsTheClassesAsksNoTrainingSplit) {
  NpySource tokens = Source({2}, {1, 2});
  tokens.test_inputs = std::exchange(tokens.train_inputs, "gone");
  tokens.test_labels = std::exchange(tokens.train_labels, "gone");
  NpySource numbers = tokens;
  numbers.vocab = 0;
  CsvSource table;
  table.train = "gone";
  table.test = Write("test.csv", "x,y,label\n5,6,1\n5,6,2\n");
  for (const int64_t classes : {5, 2, 0}) {
    tokens.classes = numbers.classes = table.classes = classes;
    for (const data::Source& source :
         {data::Source(tokens), data::Source(numbers), data::Source(table)}) {
      const auto dataset = Open(source, Split::kTest);
      EXPECT_EQ(dataset.ok(), classes == 5) << "there is a label 2: " << dataset.status();
      if (dataset.ok()) EXPECT_EQ((*dataset)->classes(), 5);
      if (classes == 0) EXPECT_TRUE(absl::IsNotFound(dataset.status())) << dataset.status();
    }
  }
}

TEST_F(NpyTokensTest, SaysWhatDoesNotFit) {
  NpySource source = Source({3}, {1, 2, 3});
  EXPECT_THAT(std::string(OpenNpy(source, Split::kTrain).status().message()),
              HasSubstr("y.npy: labels have the shape [3], but"));
  source = Source({2}, {1, 2});
  source.vocab = 9;
  EXPECT_THAT(std::string(OpenNpy(source, Split::kTrain).status().message()),
              HasSubstr("x.npy: sample 1 has the number 9; it must be in [0, 9)"));
  source.train_inputs = WriteNpy<float>("x.npy", NpyType::kFloat32, {2, 1}, {1, 2});
  EXPECT_THAT(std::string(OpenNpy(source, Split::kTrain).status().message()),
              HasSubstr("not float32"));
  source.train_inputs = WriteNpy<int32_t>("x.npy", NpyType::kInt32, {0, 3}, {});
  source.train_labels = WriteNpy<int32_t>("y.npy", NpyType::kInt32, {0}, {});
  const absl::Status empty = OpenNpy(source, Split::kTrain).status();
  EXPECT_EQ(empty.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(empty.message()),
              HasSubstr("x.npy: there are no samples, or they are empty"));
  EXPECT_FALSE(OpenNpyInputs(source.train_inputs, source).ok());
}

}  // namespace
}  // namespace lockstep::data
