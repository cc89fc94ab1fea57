// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/etcd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <google/protobuf/empty.pb.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fd.h"
#include "coordinator/store/etcd/etcd_store.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

bool IsFree(int port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

// A port that was free a moment ago, below those that the kernel gives to connections: nobody gets
// it before the program comes that is to listen there, unless he looks for it, too.
int FreePort() {
  constexpr int kUnprivileged = 1024, kTries = 1000;
  int first = 32768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  std::random_device random;
  std::uniform_int_distribution<int> any(kUnprivileged, std::max(2 * kUnprivileged, first - 1));
  for (int i = 0; i < kTries; ++i) {
    const int port = any(random);
    if (IsFree(port)) return port;
  }
  return 0;
}

bool IsInstalled() { return ::system("command -v etcd >/dev/null") == 0; }

}  // namespace

EtcdProcess* EtcdProcess::Shared() {
  static const std::unique_ptr<EtcdProcess> shared = [] {
    std::unique_ptr<EtcdProcess> etcd;
    if (!IsInstalled()) return etcd;
    std::string log;
    for (int i = 0; i < 3; ++i) {  // somebody may take a port first
      etcd.reset(new EtcdProcess());
      etcd->Start();
      if (etcd->AwaitAnswer()) return etcd;
      log = etcd->Log();
      etcd.reset();
    }
    LS_CHECK(false) << "etcd is installed and does not start; it said: " << log;
    return etcd;
  }();
  return shared.get();
}

void EtcdProcess::Start() {
  folder_ = testing::TempDir() + "etcd-XXXXXX";
  LS_CHECK(::mkdtemp(folder_.data()) != nullptr) << folder_;
  port_ = FreePort();
  endpoint_ = absl::StrCat("127.0.0.1:", port_);
  const std::string peer = absl::StrCat("http://127.0.0.1:", FreePort());
  const std::string client = absl::StrCat("http://", endpoint_);
  std::vector<std::string> words = {"etcd",
                                    "--data-dir",
                                    folder_ + "/data",
                                    "--listen-client-urls",
                                    client,
                                    "--advertise-client-urls",
                                    client,
                                    "--listen-peer-urls",
                                    peer,
                                    "--initial-advertise-peer-urls",
                                    peer,
                                    "--initial-cluster",
                                    absl::StrCat("default=", peer)};
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int log = ::open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(log, 1);
    ::dup2(log, 2);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execvp("etcd", argv.data());
    ::_exit(127);
  }
}

bool EtcdProcess::AwaitAnswer() {
  EtcdClient etcd(options("/probe/"));
  const absl::Time until = absl::Now() + kPatience;
  while (absl::Now() < until) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) {
      pid_ = 0;
      return false;
    }
    if (etcd.ReadAll("/probe/", absl::Seconds(1)).ok()) return true;
  }
  return false;
}

std::string EtcdProcess::Log() const {
  std::ifstream file(folder_ + "/log");
  return {std::istreambuf_iterator<char>(file), {}};
}

EtcdProcess::~EtcdProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::filesystem::remove_all(folder_);
}

EtcdOptions EtcdProcess::options(const std::string& prefix) const {
  EtcdOptions options;
  options.endpoints = {endpoint_};
  options.prefix = prefix;
  options.lease = absl::Seconds(20);  // nobody is deposed because the machine is busy
  return options;
}

void EtcdProcess::SetFull(bool full) {
  // An AlarmRequest is {action = 1, memberID = 2, alarm = 3}: ACTIVATE is 1, DEACTIVATE 2, NOSPACE
  // 1. A message that knows no fields has them as they are on the wire.
  google::protobuf::Empty request, response;
  ASSERT_TRUE(request.ParseFromString(full ? "\x08\x01\x18\x01" : "\x08\x02\x18\x01"));
  const auto channel = grpc::CreateChannel(endpoint_, grpc::InsecureChannelCredentials());
  const grpc::internal::RpcMethod method("/etcdserverpb.Maintenance/Alarm",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall<google::protobuf::Empty, google::protobuf::Empty>(
          channel.get(), method, &context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

EtcdOptions EtcdProcess::NewOptions() { return options(absl::StrCat("/test", ++prefixes_, "/")); }

LeadingStore::LeadingStore(const EtcdOptions& options) : etcd_(options) {
  absl::Notification won;
  Election::Callbacks callbacks;
  callbacks.on_won = [&won] { won.Notify(); };
  election_ = std::make_unique<Election>(&etcd_, Clock::Real(), EtcdLayout{options.prefix}, "test",
                                         options.lease, std::move(callbacks));
  won.WaitForNotification();
  auto store = OpenEtcdStore(election_.get());
  EXPECT_TRUE(store.ok()) << store.status();
  if (store.ok()) store_ = *std::move(store);
}

LeadingStore::~LeadingStore() {
  store_.reset();
  election_.reset();
}

}  // namespace lockstep::coordinator
