// SPDX-License-Identifier: Apache-2.0
// How a client of etcd keeps its token good, against a server that answers as etcd does.
#include "coordinator/store/etcd/client.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

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

  grpc::Status Authenticate(grpc::ServerContext*, const etcdserverpb::AuthenticateRequest*,
                            etcdserverpb::AuthenticateResponse* response) override {
    absl::MutexLock lock(&mu_);
    good_ = true;
    response->set_token(absl::StrCat("token-", ++tokens_));
    return grpc::Status::OK;
  }
  grpc::Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest*,
                     etcdserverpb::RangeResponse*) override {
    absl::MutexLock lock(&mu_);
    const auto shown = context->client_metadata().find("token");
    if (shown == context->client_metadata().end()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: user name is empty"};
    }
    const bool newest = shown->second == absl::StrCat("token-", tokens_);
    return newest && good_ ? grpc::Status::OK : why_;
  }

 private:
  absl::Mutex mu_;
  int tokens_ ABSL_GUARDED_BY(mu_) = 0;
  bool good_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status why_ ABSL_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
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

}  // namespace
}  // namespace lockstep::coordinator
