// SPDX-License-Identifier: Apache-2.0
// How a client of etcd keeps its token good, reads what needs several answers, and bears servers
// that do not answer, against one that answers as etcd does.
#include "coordinator/store/etcd/client.h"

#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fd.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// Gives one token after the other, and takes the newest alone until it is revoked.
class FakeEtcd : public etcdserverpb::Auth::Service, public etcdserverpb::KV::Service {
 public:
  FakeEtcd() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<etcdserverpb::Auth::Service*>(this));
    builder.RegisterService(static_cast<etcdserverpb::KV::Service*>(this));
    server_ = builder.BuildAndStart();
  }

  EtcdOptions options() const {
    EtcdOptions options;
    options.endpoints = {absl::StrCat("127.0.0.1:", port_)};
    options.user = "lockstep";
    options.password = "secret";
    return options;
  }
  // The newest token is taken no more; who shows it is told so.
  void Refuse(const grpc::Status& why) {
    absl::MutexLock lock(&mu_);
    why_ = why;
    good_ = false;
  }
  int tokens() {
    absl::MutexLock lock(&mu_);
    return tokens_;
  }
  // The next call that shows a good token fails all the same.
  void FailOnce(const grpc::Status& why) {
    absl::MutexLock lock(&mu_);
    fail_once_ = why;
  }
  // It has so many keys, and refuses to send more than `most` at once.
  void SetKeys(int keys, int64_t most) {
    absl::MutexLock lock(&mu_);
    keys_ = keys;
    most_ = most;
  }
  static std::string Key(int number) { return absl::StrFormat("/lockstep/%08d", number); }

  grpc::Status Authenticate(grpc::ServerContext*, const etcdserverpb::AuthenticateRequest*,
                            etcdserverpb::AuthenticateResponse* response) override {
    absl::MutexLock lock(&mu_);
    good_ = true;
    response->set_token(absl::StrCat("token-", ++tokens_));
    return grpc::Status::OK;
  }
  grpc::Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override {
    absl::MutexLock lock(&mu_);
    const auto shown = context->client_metadata().find("token");
    if (shown == context->client_metadata().end()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: user name is empty"};
    }
    const bool newest = shown->second == absl::StrCat("token-", tokens_);
    if (!newest || !good_) return why_;
    if (!fail_once_.ok()) return std::exchange(fail_once_, grpc::Status::OK);
    if (request->limit() > most_) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "Received message larger than max"};
    }
    for (int i = 0; i < keys_; ++i) {
      if (Key(i) < request->key()) continue;
      if (response->kvs_size() == request->limit()) {
        response->set_more(true);
        break;
      }
      response->add_kvs()->set_key(Key(i));
    }
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mu_;
  int tokens_ ABSL_GUARDED_BY(mu_) = 0;
  bool good_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status why_ ABSL_GUARDED_BY(mu_);
  grpc::Status fail_once_ ABSL_GUARDED_BY(mu_);
  int keys_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t most_ ABSL_GUARDED_BY(mu_) = 1 << 20;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// An endpoint that takes connections and says nothing.
class Silent {
 public:
  Silent() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(name);
    auto* const plain = reinterpret_cast<sockaddr*>(&name);
    LS_CHECK(::bind(listener_.get(), plain, size) == 0 && ::listen(listener_.get(), 8) == 0 &&
             ::getsockname(listener_.get(), plain, &size) == 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  }
  const std::string& address() const { return address_; }

 private:
  const UniqueFd listener_;
  std::string address_;
};

TEST(EtcdClientTest, GetsAnotherTokenWhenItsOwnIsNotGoodAnyMore) {
  FakeEtcd etcd;
  EtcdClient client(etcd.options());
  ASSERT_TRUE(client.Range({}, kPatience).ok());
  ASSERT_TRUE(client.Range({}, kPatience).ok());
  EXPECT_EQ(etcd.tokens(), 1);
  etcd.Refuse({grpc::StatusCode::UNAUTHENTICATED, "etcdserver: invalid auth token"});
  EXPECT_TRUE(client.Range({}, kPatience).ok());
  EXPECT_EQ(etcd.tokens(), 2);
  // A token of the kind JWT is of a revision of the users and roles.
  etcd.Refuse({grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: revision of auth store is old"});
  const auto answer = client.Range({}, kPatience);
  EXPECT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(etcd.tokens(), 3);
}

TEST(EtcdClientTest, WhatNoTokenHelpsIsSaid) {
  FakeEtcd etcd;
  EtcdClient client(etcd.options());
  ASSERT_TRUE(client.Range({}, kPatience).ok());
  etcd.Refuse({grpc::StatusCode::PERMISSION_DENIED, "etcdserver: permission denied"});
  EXPECT_EQ(client.Range({}, kPatience).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(etcd.tokens(), 1);
}

TEST(EtcdClientTest, WhatSaysNothingOfTheCallIsNoAnswer) {
  FakeEtcd etcd, other;
  other.Refuse({grpc::StatusCode::UNAUTHENTICATED, "etcdserver: invalid auth token"});
  EtcdOptions two = etcd.options();
  two.endpoints.push_back(other.options().endpoints[0]);
  for (const grpc::Status& status :
       {grpc::Status(grpc::StatusCode::UNKNOWN, "raft proposal dropped"),
        grpc::Status(grpc::StatusCode::UNKNOWN, "Stream removed"),
        grpc::Status(grpc::StatusCode::INTERNAL, "Received RST_STREAM with error code 2")}) {
    EtcdClient client(two);
    ASSERT_TRUE(client.Range({}, kPatience).ok());
    etcd.FailOnce(status);
    const absl::Status said = client.Range({}, kPatience).status();
    EXPECT_TRUE(absl::IsUnavailable(said)) << said;
    EXPECT_THAT(said.message(), testing::HasSubstr(status.error_message()));
    // Another endpoint is asked next.
    const int tokens = other.tokens();
    EXPECT_TRUE(client.Range({}, kPatience).ok());
    EXPECT_EQ(other.tokens(), tokens + 1);
  }
}

TEST(EtcdClientTest, ReadsAllInPagesOfWhichNoneIsTooLarge) {
  FakeEtcd etcd;
  EtcdClient client(etcd.options());
  for (const int64_t most : {int64_t{1} << 20, int64_t{100}}) {
    etcd.SetKeys(2345, most);
    const auto all = client.ReadAll("/lockstep/", kPatience);
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_EQ(all->size(), 2345);
    for (int i = 0; i < 2345; ++i)
      EXPECT_EQ((*all)[static_cast<size_t>(i)].key(), FakeEtcd::Key(i));
  }
}

// What explains a silent endpoint may take longer than a leader's lease lasts.
TEST(EtcdClientTest, NoCallWaitsUntilASilentEndpointIsExplained) {
  const Silent silent;
  FakeEtcd etcd;
  absl::Notification may_end;
  EtcdOptions options = etcd.options();
  options.explain = [&may_end](const EtcdOptions&, const std::string& endpoint) {
    may_end.WaitForNotification();
    return absl::StrCat("why ", endpoint, " is silent");
  };
  {
    EtcdOptions two = options;
    two.endpoints.insert(two.endpoints.begin(), silent.address());
    bool explained = false;
    two.explain = [&explained](const EtcdOptions&, const std::string&) {
      explained = true;
      return std::string();
    };
    {
      EtcdClient client(two);
      EXPECT_TRUE(absl::IsUnavailable(client.Range({}, absl::Milliseconds(100)).status()));
      EXPECT_TRUE(client.Range({}, kPatience).ok());
    }
    EXPECT_FALSE(explained) << "the other endpoint was not tried yet";
  }
  options.endpoints = {silent.address()};
  EtcdClient client(options);
  const auto said = [&client] {
    return std::string(client.Range({}, absl::Milliseconds(10)).status().message());
  };
  for (int i = 0; i < 3; ++i) EXPECT_THAT(said(), testing::HasSubstr("does not answer"));
  may_end.Notify();
  const std::string why = absl::StrCat("why ", silent.address(), " is silent");
  const absl::Time give_up = Clock::Real()->Now() + kPatience;
  while (said() != why && Clock::Real()->Now() < give_up) {
  }
  EXPECT_EQ(said(), why);
}

}  // namespace
}  // namespace lockstep::coordinator
