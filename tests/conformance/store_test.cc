// SPDX-License-Identifier: Apache-2.0
// One suite for every store of the coordinator, and what the database promises beyond it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/store.h"
#include "tests/conformance/etcd_process.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Folder {
 public:
  Folder() : path_(testing::TempDir() + "store-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string file() const { return absl::StrCat(path_, "/", kJournalFile); }

 private:
  std::string path_;
};

std::unique_ptr<Store> Open(const Folder& folder, bool sync = false) {
  auto store = OpenSqliteStore({folder.path(), sync});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

std::vector<std::string> Texts(Store& store) {
  std::vector<std::string> texts;
  const auto rows = store.GetAll();
  EXPECT_TRUE(rows.ok()) << rows.status();
  if (!rows.ok()) return texts;
  for (const StoredRow& row : *rows) {
    texts.push_back(absl::StrCat(row.key, "=", row.value, "@", row.revision));
  }
  return texts;
}

// Makes a store in a folder, which it may leave alone.
using Make = std::function<std::unique_ptr<Store>(const Folder&)>;

class StoreTest : public testing::TestWithParam<std::pair<const char*, Make>> {
 protected:
  void SetUp() override {
    if (store_ == nullptr) {
      GTEST_SKIP() << "SKIPPED: there is no program `etcd` here (Debian's etcd-server)";
    }
  }
  Folder folder_;
  std::unique_ptr<Store> store_ = GetParam().second(folder_);
};

TEST_P(StoreTest, KeepsTheNewestOfEachKeyInOrder) {
  EXPECT_THAT(Texts(*store_), testing::ElementsAre());
  EXPECT_EQ(*store_->PutBatch({{"b", "1", -1}, {"a", "2", -1}}), 1);
  EXPECT_EQ(*store_->PutBatch({{"b", "3", -1}, {"c", "4", -1}, {"c", "5", -1}}), 2);
  EXPECT_THAT(Texts(*store_), testing::ElementsAre("a=2@1", "b=3@2", "c=5@2"));
  EXPECT_EQ(*store_->PutBatch({}), 2);
}

TEST_P(StoreTest, TakesAnyBytes) {
  const std::string key("k\0\xff", 3), value("\0\0v", 3), large(1 << 20, '\7');
  ASSERT_TRUE(store_->PutBatch({{key, value, -1}, {"empty", "", -1}, {"large", large, -1}}).ok());
  const auto rows = store_->GetAll();
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 3);
  EXPECT_EQ((*rows)[0].value, "");
  EXPECT_EQ((*rows)[1].key, key);
  EXPECT_EQ((*rows)[1].value, value);
  EXPECT_EQ((*rows)[2].value, large);
}

TEST_P(StoreTest, ComparesRevisions) {
  ASSERT_TRUE(store_->PutBatch({{"a", "1", 0}}).ok());
  for (const int64_t wrong : {0, 2}) {
    const auto put = store_->PutBatch({{"new", "x", 0}, {"a", "2", wrong}});
    EXPECT_EQ(put.status().code(), absl::StatusCode::kAborted) << wrong;
    EXPECT_THAT(put.status().message(), HasSubstr("row a has revision 1"));
  }
  EXPECT_EQ(store_->PutBatch({{"none", "x", 1}}).status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Texts(*store_), testing::ElementsAre("a=1@1"));  // all or nothing
  EXPECT_EQ(*store_->PutBatch({{"a", "2", 1}, {"new", "x", 0}}), 2);
  EXPECT_THAT(Texts(*store_), testing::ElementsAre("a=2@2", "new=x@2"));
}

// More rows and bytes than etcd takes at once.
TEST_P(StoreTest, TakesLargeBatches) {
  std::vector<Put> puts;
  for (int i = 0; i < 300; ++i) puts.push_back({absl::StrCat("row", i), std::string(10000, 'v')});
  puts.push_back({"huge", std::string(3 << 20, 'h')});
  EXPECT_EQ(*store_->PutBatch(puts), 1);
  EXPECT_EQ(*store_->PutBatch({{"huge", "small"}, {"row7", "", 1, true}}), 2);
  const auto rows = store_->GetAll();
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 300);
  EXPECT_EQ(rows->front().value, "small");
  EXPECT_EQ(rows->front().revision, 2);
  EXPECT_EQ(rows->back().value, std::string(10000, 'v'));
}

TEST_P(StoreTest, ErasesRows) {
  ASSERT_TRUE(store_->PutBatch({{"a", "1"}, {"b", "2"}}).ok());
  EXPECT_EQ(*store_->PutBatch({{"a", "", -1, true}, {"none", "", -1, true}, {"c", "3"}}), 2);
  EXPECT_THAT(Texts(*store_), testing::ElementsAre("b=2@1", "c=3@2"));
  // Of one key the last counts.
  EXPECT_EQ(*store_->PutBatch({{"b", "4"}, {"b", "", -1, true}, {"a", "", 0, true}, {"a", "5"}}),
            3);
  EXPECT_THAT(Texts(*store_), testing::ElementsAre("a=5@3", "c=3@2"));
  EXPECT_EQ(store_->PutBatch({{"a", "", 1, true}, {"c", "6"}}).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_THAT(Texts(*store_), testing::ElementsAre("a=5@3", "c=3@2"));
}

TEST_P(StoreTest, TakesKeysUpToABound) {
  const std::string longest(kMostKeyBytes, 'k'), longer(kMostKeyBytes + 1, 'k');
  EXPECT_EQ(*store_->PutBatch({{longest, std::string(3 << 20, 'v')}}), 1);
  EXPECT_EQ(*store_->PutBatch({{longest, "small"}}), 2);
  EXPECT_THAT(Texts(*store_), testing::ElementsAre(longest + "=small@2"));
  EXPECT_EQ(*store_->PutBatch({{longest, "", -1, true}}), 3);
  for (const Put& put : {Put{longer, "x"}, Put{longer, "", -1, true}}) {
    const absl::Status status = store_->PutBatch({{"a", "1"}, put}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("'kkk"));
    EXPECT_THAT(status.message(), HasSubstr("65537 bytes, and may have 65536"));
    EXPECT_LT(status.message().size(), 200);
  }
  EXPECT_THAT(Texts(*store_), testing::ElementsAre());
  EXPECT_EQ(*store_->PutBatch({{"a", "1"}}), 4);
}

INSTANTIATE_TEST_SUITE_P(
    All, StoreTest,
    testing::Values(std::make_pair("memory", Make([](const Folder&) { return MakeMemoryStore(); })),
                    std::make_pair("sqlite", Make([](const Folder& f) { return Open(f); })),
                    std::make_pair("sqlite_sync",
                                   Make([](const Folder& f) { return Open(f, true); })),
                    std::make_pair("etcd", Make([](const Folder&) -> std::unique_ptr<Store> {
                                     EtcdProcess* const etcd = EtcdProcess::Shared();
                                     if (etcd == nullptr) return nullptr;
                                     return std::make_unique<LeadingStore>(etcd->NewOptions());
                                   }))),
    [](const auto& info) { return std::string(info.param.first); });

TEST(SqliteStore, GoesOnWhereItWas) {
  const Folder folder;
  ASSERT_TRUE(Open(folder)->PutBatch({{"a", "1", -1}}).ok());
  EXPECT_EQ(*Open(folder)->PutBatch({{"b", "2", 0}}), 2);
  EXPECT_THAT(Texts(*Open(folder)), testing::ElementsAre("a=1@1", "b=2@2"));
}

TEST(SqliteStore, ErasedRowsStayAway) {
  const Folder folder;
  ASSERT_TRUE(Open(folder)->PutBatch({{"a", "1"}, {"b", "2"}}).ok());
  ASSERT_TRUE(Open(folder)->PutBatch({{"a", "", -1, true}}).ok());
  const auto store = Open(folder);
  EXPECT_THAT(Texts(*store), testing::ElementsAre("b=2@1"));
  EXPECT_GT(*store->PutBatch({{"c", "3"}}), 1);  // above that of any row
}

// Runs `body` in a process that is then killed, at once after it has said that it is done.
void InAKilledProcess(const std::function<void()>& body) {
  int done[2];
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    (void)!::write(done[1], "x", 1);
    while (true) ::pause();
  }
  ::close(done[1]);
  char byte;
  EXPECT_EQ(::read(done[0], &byte, 1), 1);
  ::close(done[0]);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(SqliteStore, ABatchSurvivesItsProcess) {
  for (const bool sync : {false, true}) {
    const Folder folder;
    InAKilledProcess([&] {
      static Store* const store = Open(folder, sync).release();
      for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(store->PutBatch({{absl::StrCat("k", i), std::string(10000, 'v'), 0}}).ok());
      }
    });
    EXPECT_EQ(Texts(*Open(folder)).size(), 20);
  }
}

TEST(SqliteStore, IsForOneProcess) {
  const Folder folder;
  int ready[2], over[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(over), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = OpenSqliteStore({folder.path(), false});
    (void)!::write(ready[1], "x", 1);
    char byte;
    (void)!::read(over[0], &byte, 1);
    ::_exit(store.ok() ? 0 : 1);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto second = OpenSqliteStore({folder.path(), false});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("another coordinator"));
  EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat("process ", child)));
  ASSERT_EQ(::write(over[1], "x", 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_NE(Open(folder), nullptr);
  for (const int fd : {ready[0], ready[1], over[0], over[1]}) ::close(fd);
}

TEST(SqliteStore, IsPrivate) {
  const Folder folder;
  const std::string inner = folder.path() + "/state";
  ASSERT_TRUE(OpenSqliteStore({inner, false}).ok());
  struct stat found = {};
  ASSERT_EQ(::stat(inner.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700);
  ASSERT_EQ(::stat((inner + "/" + kJournalFile).c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600);
}

TEST(SqliteStore, SaysWhatHinders) {
  const Folder folder;
  std::ofstream(folder.path() + "/file") << "x";
  auto store = OpenSqliteStore({folder.path() + "/file", false});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(store.status().message(), HasSubstr(folder.path() + "/file"));
  std::filesystem::create_directory(folder.file());
  store = OpenSqliteStore({folder.path(), false});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(store.status().message(), HasSubstr(folder.file()));
}

TEST(SqliteStore, KnowsFilesOfOthersAndOfLaterVersions) {
  const Folder folder;
  ASSERT_TRUE(Open(folder)->PutBatch({{"a", "1", -1}}).ok());
  const auto patch = [&](long offset, char byte) {
    std::fstream file(folder.file(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.put(byte);
  };
  patch(63, 2);  // the version's last byte in SQLite's header
  EXPECT_THAT(OpenSqliteStore({folder.path(), false}).status().message(),
              HasSubstr("has version 2"));
  patch(63, 1);
  patch(71, 'x');  // the application's
  EXPECT_THAT(OpenSqliteStore({folder.path(), false}).status().message(),
              HasSubstr("of another program"));
}

TEST(SqliteStore, IsCopiedWhileItIsUsed) {
  const Folder folder;
  const auto store = Open(folder, true);
  ASSERT_TRUE(store->PutBatch({{"a", "1"}, {"b", "2"}}).ok());
  const std::string copy = folder.path() + "/copy.db";
  ASSERT_TRUE(CopySqliteStore(folder.path(), copy).ok());
  ASSERT_TRUE(store->PutBatch({{"a", "3"}}).ok());
  const auto rows = ReadJournalFile(copy);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->front().value, "1");
  EXPECT_EQ(CopySqliteStore(folder.path(), copy).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(WriteJournalFile(copy, *rows).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(CopySqliteStore(folder.path() + "/none", copy + "2").code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteJournalFile(copy + "3", *rows).ok());
  EXPECT_EQ(ReadJournalFile(copy + "3")->back().value, "2");
}

// It could not be restored, and who is told only then has no older one any more.
TEST(SqliteStore, ADamagedRowIsNotCopied) {
  const Folder folder;
  ASSERT_TRUE(Open(folder)->PutBatch({{"a", "1"}, {"b", "2"}}).ok());
  {
    const auto database = SqliteDatabase::Open(folder.file(), /*busy_millis=*/500);
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_TRUE((*database)->Run("UPDATE rows SET value = 'x' WHERE key = 'b'").ok());
  }
  const std::string copy = folder.path() + "/copy.db";
  const absl::Status damaged = CopySqliteStore(folder.path(), copy);
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(damaged.message(), HasSubstr("row 'b'"));
  EXPECT_THAT(damaged.message(), HasSubstr(absl::StrCat("'", folder.file(), "'")));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("copy.db")));
  }
}

TEST(SqliteStore, ACopyThatWasCutOffIsSaidToBe) {
  const Folder folder;
  std::vector<Put> puts;
  for (int i = 0; i < 40; ++i) puts.push_back({absl::StrCat("key", i), std::string(300, 'v'), -1});
  ASSERT_TRUE(Open(folder)->PutBatch(puts).ok());
  const std::string copy = folder.path() + "/copy.db";
  ASSERT_TRUE(CopySqliteStore(folder.path(), copy).ok());
  const off_t whole = static_cast<off_t>(std::filesystem::file_size(copy));
  for (const off_t size : {whole / 2, off_t{100}, off_t{0}}) {
    ASSERT_EQ(::truncate(copy.c_str(), size), 0);
    const absl::Status status = ReadJournalFile(copy).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << size << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr("or cut off: nothing of it is used; take another"));
  }
}

// Wherever a byte is changed, nothing wrong is read: it is noticed, or nothing depends on it.
TEST(SqliteStore, NoticesDamage) {
  const Folder folder;
  std::vector<Put> puts;
  for (int i = 0; i < 40; ++i) puts.push_back({absl::StrCat("key", i), std::string(300, 'v'), -1});
  ASSERT_TRUE(Open(folder)->PutBatch(puts).ok());
  const std::vector<std::string> good = Texts(*Open(folder));
  std::ifstream in(folder.file(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::mt19937 random(1);
  int noticed = 0;
  for (int i = 0; i < 60; ++i) {
    std::string damaged = bytes;
    damaged[i == 0 ? 3 : random() % bytes.size()] ^= 0x41;
    std::ofstream(folder.file(), std::ios::binary) << damaged;
    auto store = OpenSqliteStore({folder.path(), false});
    const auto rows = store.ok() ? (*store)->GetAll() : store.status();
    if (rows.ok()) {
      EXPECT_EQ(Texts(**store), good) << i;
      continue;
    }
    ++noticed;
    EXPECT_TRUE(absl::IsDataLoss(rows.status()) || absl::IsFailedPrecondition(rows.status()))
        << rows.status();
    if (i == 0) {
      EXPECT_THAT(rows.status().message(), HasSubstr("put a copy back"));
    }
  }
  EXPECT_GT(noticed, 30);
  std::ofstream(folder.file(), std::ios::binary) << bytes;
  EXPECT_EQ(Texts(*Open(folder)), good);
}

// Does `what` while no file may grow beyond 100,000 bytes, as on a full disk.
template <typename What>
auto OnAFullDisk(What what) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little = {100000, before.rlim_max};
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  auto done = what();
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  return done;
}

TEST(SqliteStore, ACopyThatFindsNoRoomBlamesItsOwnDisk) {
  const Folder folder;
  const auto store = Open(folder, true);
  ASSERT_TRUE(store->PutBatch({{"large", std::string(300000, 'x')}}).ok());
  const std::string copy = folder.path() + "/copy.db";
  const absl::Status full = OnAFullDisk([&] { return CopySqliteStore(folder.path(), copy); });
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), StartsWith(absl::StrCat("'", copy, ".")));
  EXPECT_TRUE(CopySqliteStore(folder.path(), copy).ok());
}

TEST(SqliteStore, AFullDiskCostsTheBatchAlone) {
  const Folder folder;
  const std::unique_ptr<Store> store = Open(folder);
  ASSERT_TRUE(store->PutBatch({{"a", "1", -1}}).ok());
  const auto put = OnAFullDisk([&] {
    return store->PutBatch({{"a", "2", -1}, {"large", std::string(300000, 'x'), -1}});
  });
  EXPECT_EQ(put.status().code(), absl::StatusCode::kResourceExhausted) << put.status();
  EXPECT_THAT(std::string(put.status().message()),
              StartsWith(absl::StrCat("'", folder.file(), "'")));
  EXPECT_THAT(Texts(*store), testing::ElementsAre("a=1@1"));
  EXPECT_TRUE(store->PutBatch({{"b", "3", 0}}).ok());
  EXPECT_EQ(Texts(*store).size(), 2);
}

}  // namespace
}  // namespace lockstep::coordinator
