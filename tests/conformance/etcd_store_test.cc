// SPDX-License-Identifier: Apache-2.0
// What the store in etcd promises beyond the suite of all stores: only who leads writes, and a
// batch that needs several transactions is there wholly or not at all, wherever its leader dies.
// Against a real etcd.
#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/thread.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/store/etcd/etcd_store.h"
#include "coordinator/store/etcd/layout.h"
#include "coordinator/store/etcd/options.h"
#include "tests/conformance/etcd_process.h"
#include "tests/conformance/late_answers.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Passes calls on to an etcd, and says of one transaction that it carried out what it is told to.
class Misreporting : public etcdserverpb::KV::Service, public etcdserverpb::Lease::Service {
 public:
  explicit Misreporting(const EtcdOptions& etcd) : etcd_(etcd) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<etcdserverpb::KV::Service*>(this));
    builder.RegisterService(static_cast<etcdserverpb::Lease::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~Misreporting() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // Of the next transaction.
  void Misreport(const grpc::Status& status) {
    absl::MutexLock lock(&mu_);
    next_ = status;
  }

  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* response) override {
    const grpc::Status said = Answer(etcd_.Txn(*request, kPatience), response);
    absl::MutexLock lock(&mu_);
    return next_.ok() ? said : std::exchange(next_, grpc::Status::OK);
  }
  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override {
    return Answer(etcd_.Range(*request, kPatience), response);
  }
  grpc::Status LeaseGrant(grpc::ServerContext*, const etcdserverpb::LeaseGrantRequest* request,
                          etcdserverpb::LeaseGrantResponse* response) override {
    return Answer(etcd_.Grant(request->ttl(), kPatience), response);
  }
  grpc::Status LeaseRevoke(grpc::ServerContext*, const etcdserverpb::LeaseRevokeRequest* request,
                           etcdserverpb::LeaseRevokeResponse*) override {
    return ToGrpc(etcd_.Revoke(request->id(), kPatience));
  }
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      etcdserverpb::LeaseKeepAliveResponse response;
      response.set_ttl(etcd_.KeepAlive(request.id(), kPatience).value_or(0));
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

 private:
  template <typename Response>
  static grpc::Status Answer(const absl::StatusOr<Response>& answer, Response* response) {
    if (answer.ok()) *response = *answer;
    return ToGrpc(answer.status());
  }

  EtcdClient etcd_;
  absl::Mutex mu_;
  grpc::Status next_ ABSL_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class EtcdStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (etcd_ == nullptr) {
      GTEST_SKIP() << "SKIPPED: there is no program `etcd` here (Debian's etcd-server)";
    }
    options_ = etcd_->NewOptions();
    layout_.prefix = options_.prefix;
  }
  std::unique_ptr<LeadingStore> Lead() { return std::make_unique<LeadingStore>(options_); }
  // Everything as another one reads it, who does not lead.
  std::vector<StoredRow> Read(EtcdClient& client) {
    auto rows = ReadEtcdRows(&client, layout_, kPatience);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? *std::move(rows) : std::vector<StoredRow>();
  }
  // Takes the leader's key away as etcd does when its lease is over.
  void EndLease(EtcdClient& client) {
    etcdserverpb::TxnRequest txn;
    txn.add_success()->mutable_request_delete_range()->set_key(layout_.Leader());
    ASSERT_TRUE(client.Txn(txn, kPatience).ok());
  }
  // The mark of the newest batch as it was at one of etcd's revisions; 0: now.
  etcdserverpb::RangeResponse Mark(EtcdClient& client, int64_t revision = 0) {
    etcdserverpb::RangeRequest request;
    request.set_key(layout_.Newest());
    request.set_revision(revision);
    const auto found = client.Range(request, kPatience);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *found : etcdserverpb::RangeResponse();
  }
  static std::vector<Put> Large(char value) {
    std::vector<Put> puts;
    for (int i = 0; i < 250; ++i) {
      puts.push_back({absl::StrCat("row", i), std::string(10000, value)});
    }
    return puts;
  }

  EtcdProcess* const etcd_ = EtcdProcess::Shared();
  EtcdOptions options_;
  EtcdLayout layout_;
};

TEST_F(EtcdStoreTest, GoesOnWhereTheLastLeaderWas) {
  ASSERT_TRUE(Lead()->PutBatch({{"a", "1"}}).ok());
  EXPECT_EQ(*Lead()->PutBatch({{"b", "2", 0}}), 2);
  const auto third = Lead();
  EXPECT_EQ(third->PutBatch({{"a", "x", 2}}).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(*third->PutBatch({{"a", "3", 1}}), 3);
}

TEST_F(EtcdStoreTest, WhoWasDeposedWritesNothing) {
  const auto old = Lead();
  ASSERT_TRUE(old->PutBatch({{"a", "1"}}).ok());
  EndLease(old->etcd());
  ASSERT_TRUE(old->Leads());  // it has not noticed
  const auto next = Lead();
  for (const std::vector<Put>& puts : {std::vector<Put>{{"a", "old"}}, Large('o')}) {
    const auto put = old->PutBatch(puts);
    EXPECT_EQ(put.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(put.status().message(), HasSubstr("leads no more"));
  }
  EXPECT_FALSE(old->Leads());
  const std::vector<StoredRow> rows = Read(next->etcd());
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0].value, "1");
  EXPECT_EQ(*next->PutBatch({{"a", "2"}}), 2);
}

// A transaction that arrives when the next batch was written already, as after a network's delay.
TEST_F(EtcdStoreTest, ALateTransactionDoesNothing) {
  const auto store = Lead();
  ASSERT_TRUE(store->PutBatch({{"a", "1"}}).ok());
  const auto all = store->etcd().ReadAll(layout_.prefix, kPatience);
  ASSERT_TRUE(all.ok());
  const auto content = ContentOf(layout_, *all);
  ASSERT_TRUE(content.ok());
  ASSERT_TRUE(store->PutBatch({{"a", "2"}}).ok());
  etcdserverpb::TxnRequest late;
  auto* const guard = late.add_compare();
  guard->set_target(etcdserverpb::Compare::MOD);
  guard->set_key(layout_.Newest());
  guard->set_mod_revision(content->newest_mod);
  late.add_success()->mutable_request_put()->set_key(layout_.Rows() + "a");
  const auto answer = store->etcd().Txn(late, kPatience);
  ASSERT_TRUE(answer.ok());
  EXPECT_FALSE(answer->succeeded());
  EXPECT_EQ(Read(store->etcd())[0].value, "2");
}

// The state of etcd's keys after each transaction of a large batch, as it is when the leader dies
// there: who reads it sees all of the batch or nothing, and the next leader goes on from that.
TEST_F(EtcdStoreTest, ALargeBatchIsWholeWhereverItsLeaderDies) {
  {
    const auto first = Lead();
    ASSERT_TRUE(first->PutBatch(Large('a')).ok());
    ASSERT_TRUE(first->PutBatch({{"huge", std::string(2 << 20, 'a')}}).ok());
  }
  EtcdClient client(options_);
  const int64_t before = Mark(client).header().revision();
  {
    const auto second = Lead();
    std::vector<Put> puts = Large('b');
    puts.push_back({"huge", "b"});
    puts.push_back({"row3", "", -1, true});
    ASSERT_TRUE(second->PutBatch(puts).ok());
  }
  const int64_t after = Mark(client).header().revision();
  ASSERT_GT(after - before, 6);
  int old_states = 0, new_states = 0;
  for (int64_t revision = before; revision <= after; ++revision) {
    std::vector<etcdserverpb::KeyValue> all;
    etcdserverpb::RangeRequest request;
    request.set_key(layout_.prefix);
    request.set_range_end(RangeEnd(layout_.prefix));
    request.set_revision(revision);
    const auto page = client.Range(request, kPatience);
    ASSERT_TRUE(page.ok()) << page.status();
    all.assign(page->kvs().begin(), page->kvs().end());
    const auto content = ContentOf(layout_, all);
    ASSERT_TRUE(content.ok()) << revision << ": " << content.status();
    const char value = content->rows.at("huge").value.back();
    (value == 'a' ? old_states : new_states) += 1;
    EXPECT_EQ(content->rows.size(), value == 'a' ? 251 : 250) << revision;
    for (const auto& [key, row] : content->rows) {
      EXPECT_EQ(row.value.back(), value) << key << " at " << revision;
      EXPECT_EQ(row.value.size(), key != "huge" ? 10000 : value == 'a' ? 2 << 20 : 1);
    }
  }
  EXPECT_GT(old_states, 3);  // parts are laid down
  EXPECT_GT(new_states, 3);  // and moved
  // Nothing is left that belongs to no row.
  const auto all = client.ReadAll(layout_.prefix, kPatience);
  ASSERT_TRUE(all.ok());
  for (const auto& kv : *all) {
    EXPECT_THAT(kv.key(), Not(HasSubstr("/pieces/")));
    EXPECT_THAT(kv.key(), Not(HasSubstr("/parts/")));
  }
}

// Copies of a large batch's transactions that come late: each is guarded by the mark as it was
// before it, and each has changed it.
TEST_F(EtcdStoreTest, NoTransactionOfALargeBatchHappensAfterALaterOne) {
  const auto store = Lead();
  ASSERT_TRUE(store->PutBatch({{"a", "1"}}).ok());
  const int64_t before = Mark(store->etcd()).header().revision();
  ASSERT_TRUE(store->PutBatch(Large('b')).ok());
  const int64_t after = Mark(store->etcd()).header().revision();
  ASSERT_GT(after - before, 6);
  for (int64_t revision = before; revision <= after; ++revision) {
    const auto mark = Mark(store->etcd(), revision);
    ASSERT_EQ(mark.kvs_size(), 1);
    EXPECT_EQ(mark.kvs(0).mod_revision(), revision);
  }
}

// What a leader left that died when its batch counted and was not moved yet.
TEST_F(EtcdStoreTest, TheNextLeaderEndsTheMove) {
  ASSERT_TRUE(Lead()->PutBatch({{"a", "1"}, {"gone", "1"}}).ok());
  EtcdClient client(options_);
  const std::vector<Put> puts = {
      {"a", "2"}, {"b", std::string(1 << 20, 'b')}, {"gone", "", -1, true}};
  const std::vector<std::string> parts = CutChanges(ChangesOf(puts));
  std::string text;
  etcdserverpb::TxnRequest txn;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto* const put = txn.add_success()->mutable_request_put();
    put->set_key(layout_.Part(static_cast<int>(i)));
    put->set_value(parts[i]);
    text += parts[i];
  }
  ASSERT_TRUE(client.Txn(txn, kPatience).ok());
  EXPECT_EQ(Read(client).front().value, "1");  // it does not count yet
  EtcdNewest newest;
  newest.set_revision(2);
  newest.set_parts(static_cast<int>(parts.size()));
  newest.set_hash(EtcdHash("", text));
  etcdserverpb::TxnRequest mark;
  mark.add_success()->mutable_request_put()->set_key(layout_.Newest());
  mark.mutable_success(0)->mutable_request_put()->set_value(newest.SerializeAsString());
  ASSERT_TRUE(client.Txn(mark, kPatience).ok());
  for (int i = 0; i < 2; ++i) {  // as it lies, and after the move
    const std::vector<StoredRow> rows = Read(client);
    ASSERT_EQ(rows.size(), 2);
    EXPECT_EQ(rows[0].value, "2");
    EXPECT_EQ(rows[1].value.size(), 1 << 20);
    EXPECT_EQ(rows[1].revision, 2);
    if (i == 0) {
      EXPECT_EQ(*Lead()->PutBatch({}), 2);
    }
  }
}

TEST_F(EtcdStoreTest, NoticesDamage) {
  const auto store = Lead();
  ASSERT_TRUE(store->PutBatch({{"a", "1"}, {"b", std::string(1 << 20, 'b')}}).ok());
  etcdserverpb::TxnRequest txn;
  txn.add_success()->mutable_request_delete_range()->set_key(layout_.Piece("b", 1));
  ASSERT_TRUE(store->etcd().Txn(txn, kPatience).ok());
  const auto rows = store->GetAll();
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(rows.status().message(), HasSubstr("rows/b"));
}

// An etcd whose answers all come late, as those of one whose disk is busy. Each took longer than
// one call was given, and was asked for again without an end.
TEST_F(EtcdStoreTest, LeadsAndWritesThoughEachAnswerTakesLong) {
  LateAnswers late(etcd_->port(), absl::Milliseconds(700));
  options_.endpoints = {late.address()};
  EtcdClient client(options_);
  absl::Notification won;
  Election::Callbacks callbacks;
  callbacks.on_won = [&won] { won.Notify(); };
  Election election(&client, Clock::Real(), layout_, "late", options_.lease, std::move(callbacks));
  ASSERT_TRUE(won.WaitForNotificationWithTimeout(kPatience));
  const auto store = OpenEtcdStore(&election);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(*(*store)->PutBatch({{"a", "1"}}), 1);
  EXPECT_TRUE(election.Leads());
}

// As of a cluster that is a year old, on an etcd that is slow: it takes longer than any one answer
// is waited for.
TEST_F(EtcdStoreTest, ReadsALongJournalThoughEachAnswerTakesLong) {
  constexpr int kRows = 3000;
  std::vector<Put> puts;
  for (int i = 0; i < kRows; ++i) puts.push_back({absl::StrCat("row", i), "value"});
  ASSERT_TRUE(Lead()->PutBatch(puts).ok());
  LateAnswers late(etcd_->port(), absl::Milliseconds(700));
  options_.endpoints = {late.address()};
  const auto store = Lead();
  const auto rows = store->GetAll();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->size(), kRows);
  // What was read at first is not the newest for ever.
  ASSERT_TRUE(store->PutBatch({{"one more", "value"}}).ok());
  EXPECT_EQ(store->GetAll()->size(), kRows + 1);
}

// A connection that a network swallowed stays open, and with one endpoint there is no other to use.
TEST_F(EtcdStoreTest, AConnectionThatWasSwallowedIsMadeAnew) {
  LateAnswers way(etcd_->port(), absl::ZeroDuration());
  options_.endpoints = {way.address()};
  EtcdClient client(options_);
  etcdserverpb::RangeRequest request;
  request.set_key(layout_.Newest());
  const auto answered = [&] { return client.Range(request, absl::Seconds(1)).ok(); };
  ASSERT_TRUE(client.Range(request, kPatience).ok());
  way.Swallow();
  while (answered()) {
  }
  const absl::Time give_up = Clock::Real()->Now() + kPatience;
  bool back = false;
  while (!back && Clock::Real()->Now() < give_up) back = answered();
  EXPECT_TRUE(back);
}

// Etcd says so of what it has carried out, where it finds that out afterwards. And its leader may
// change after it has.
TEST_F(EtcdStoreTest, WhatWasCarriedOutAndReportedAsRefusedIsWritten) {
  Misreporting etcd(options_);
  options_.endpoints = {etcd.address()};
  const auto store = Lead();
  ASSERT_TRUE(store->PutBatch({{"a", "0"}}).ok());
  int64_t revision = 1;
  for (const grpc::Status& status :
       {grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                     "etcdserver: mvcc: database space exceeded"),
        grpc::Status(grpc::StatusCode::UNKNOWN, "raft proposal dropped")}) {
    etcd.Misreport(status);
    const auto put = store->PutBatch({{"a", "1"}});
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(*put, ++revision);
    EXPECT_EQ(*store->PutBatch({{"a", "2"}}), ++revision);
    EXPECT_TRUE(store->Leads());
  }
}

// The first try is carried out and its answer late; the second is refused for want of space.
TEST_F(EtcdStoreTest, WhatAnUnansweredTryHasWrittenIsWritten) {
  LateAnswers late(etcd_->port(), absl::ZeroDuration());
  EtcdClient direct(options_);
  options_.endpoints = {late.address()};
  const auto store = Lead();
  ASSERT_TRUE(store->PutBatch({}).ok());
  late.SetLate(absl::Milliseconds(1100));  // the first try waits for a second
  absl::StatusOr<int64_t> put;
  Thread writes("writes", [&] { put = store->PutBatch({{"a", "1"}}); });
  while (Mark(direct).kvs().empty()) Clock::Real()->Sleep(absl::Milliseconds(1));
  etcd_->SetFull(true);
  writes.Join();
  etcd_->SetFull(false);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(*put, 1);
  EXPECT_EQ(*store->PutBatch({{"a", "2"}}), 2);
  // One that came to nothing is refused.
  etcd_->SetFull(true);
  put = store->PutBatch({{"a", "3"}});
  etcd_->SetFull(false);
  EXPECT_TRUE(absl::IsResourceExhausted(put.status())) << put.status();
  EXPECT_EQ(*store->PutBatch({{"a", "4"}}), 3);
}

// The lease that is asked for would be over before it could be renewed.
TEST_F(EtcdStoreTest, TheLeadIsHeldThoughEachAnswerTakesHalfTheLease) {
  LateAnswers late(etcd_->port(), absl::Milliseconds(900));
  options_.endpoints = {late.address()};
  const absl::Duration lease = absl::Seconds(2);
  absl::Notification won, lost;
  Election::Callbacks callbacks;
  callbacks.on_won = [&won] {
    if (!won.HasBeenNotified()) won.Notify();
  };
  callbacks.on_lost = [&lost](const absl::Status&) { lost.Notify(); };
  EtcdClient client(options_), other(options_);
  Election first(&client, Clock::Real(), layout_, "first", lease, callbacks);
  ASSERT_TRUE(won.WaitForNotificationWithTimeout(kPatience));
  Election second(&other, Clock::Real(), layout_, "second", lease, {});
  EXPECT_FALSE(lost.WaitForNotificationWithTimeout(4 * lease));
  EXPECT_TRUE(first.Leads());
  EXPECT_FALSE(second.Leads());
}

TEST_F(EtcdStoreTest, OneOfTwoLeadsAndTheOtherFollowsAtOnceWhenItGoes) {
  auto first = Lead();
  const absl::Time until = first->election().Until();
  EXPECT_GT(until, Clock::Real()->Now());
  EXPECT_LT(until, Clock::Real()->Now() + options_.lease);
  first.reset();  // gives its lease up
  const absl::Time began = Clock::Real()->Now();
  const auto second = Lead();
  EXPECT_LT(Clock::Real()->Now() - began, options_.lease);
}

TEST(EtcdAddress, IsTakenApart) {
  const auto two = ParseEtcdAddress("etcd://a:1,[::1]:2/x/y/");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_THAT(two->endpoints, testing::ElementsAre("a:1", "[::1]:2"));
  EXPECT_EQ(two->prefix, "/x/y/");
  EXPECT_FALSE(two->tls);
  EXPECT_EQ(ParseEtcdAddress("etcds://a:1")->prefix, "/lockstep/");
  EXPECT_TRUE(ParseEtcdAddress("etcds://a:1")->tls);
  for (const char* wrong :
       {"", "a:1", "etcd://", "etcd://a", "etcd://a:x", "etcd://a:1,", "etcd://:1"}) {
    EXPECT_EQ(ParseEtcdAddress(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace lockstep::coordinator
