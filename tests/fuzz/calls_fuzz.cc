// SPDX-License-Identifier: Apache-2.0
// Whatever a caller sends to a listening coordinator: bytes on a new connection, and bytes as the
// messages of each call of each service, made by the cluster's administrator, who may do
// everything. The coordinator refuses or does it, and goes on.
//
// Records of a byte, two bytes of length and what is sent. The byte is the number of the call in
// proto/'s order; from 240 on it is no call, but bytes for a connection of their own: as they are,
// or, when it is odd, after HTTP/2's preface and empty settings.
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fd.h"
#include "common/hmac.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/client.h"
#include "coordinator/service/server.h"
#include "proto/access.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/files.pb.h"
#include "proto/package.pb.h"

namespace lockstep::coordinator {
namespace {

constexpr int kConnection = 240;
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
// So much lies in the coordinator before another takes its place.
constexpr int kCallsPerServer = 2'000;
constexpr absl::Duration kPatience = absl::Seconds(10);
// A stream that the caller has ended ends; a follower of what does not end is cut off.
constexpr auto kStream = std::chrono::milliseconds(200);

class Target {
 public:
  Target() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "lockstep-fuzz-XXXXXX").string();
    LS_CHECK(::mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    // libcrypto registers its own end when it is first used. It has to come after the server's
    // end: what a thread has there is freed only while the library lives.
    (void)HmacSha256("", "");
    for (const auto* service : {SubmitJobRequest::descriptor()->file()->service(0),
                                FindFilesRequest::descriptor()->file()->service(0),
                                HasPackageRequest::descriptor()->file()->service(0),
                                TokenInfo::descriptor()->file()->service(0)}) {
      for (int i = 0; i < service->method_count(); ++i) {
        methods_.push_back(
            absl::StrCat("/lockstep.", service->name(), "/", service->method(i)->name()));
      }
    }
  }
  ~Target() {
    End();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void Say(uint8_t kind, const std::string& bytes) {
    if (server_ == nullptr || calls_++ == kCallsPerServer) Begin();
    if (kind >= kConnection) return Connect((kind & 1) != 0, bytes);
    Call(methods_[kind % methods_.size()], bytes);
  }

  // Whoever asks is answered.
  void Check() {
    if (server_ == nullptr) return;
    const auto cluster = client_->GetCluster(kPatience);
    LS_CHECK(cluster.ok()) << cluster.status();
  }

 private:
  void Begin() {
    End();
    store_ = MakeMemoryStore();
    ServerOptions options;
    options.listen = absl::StrCat("unix:", folder_, "/coordinator");
    auto server = Server::Start(options, Clock::Real(), store_.get());
    LS_CHECK(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = MakeChannel({options.listen, ""});
    client_ = Client::Create({options.listen, ""});
    calls_ = 0;
  }
  void End() {
    client_.reset();
    channel_.reset();
    server_.reset();
    store_.reset();
  }

  // Every call is HTTP/2's stream: one message and the end of what the caller says.
  void Call(const std::string& method, const std::string& bytes) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kStream);
    const grpc::internal::RpcMethod rpc(method.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING);
    const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel_.get(), rpc, &context));
    const grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1));
    stream->WritesDone();
    grpc::ByteBuffer answer;
    while (stream->Read(&answer)) {
    }
    (void)stream->Finish();
  }

  void Connect(bool http, const std::string& bytes) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder_ + "/coordinator";
    LS_CHECK_LT(path.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    LS_CHECK_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
                0);
    const timeval patience = {0, 20'000};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    std::string sent = bytes;
    if (http) sent = std::string(kPreface) + std::string("\0\0\0\4\0\0\0\0\0", 9) + bytes;
    (void)!::send(fd.get(), sent.data(), sent.size(), MSG_NOSIGNAL);
    ::shutdown(fd.get(), SHUT_WR);
    char answer[4096];
    while (::recv(fd.get(), answer, sizeof(answer), 0) > 0) {
    }
  }

  std::string folder_;
  std::vector<std::string> methods_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Client> client_;
  int calls_ = 0;
};

}  // namespace
}  // namespace lockstep::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static lockstep::coordinator::Target* const target = [] {
    static lockstep::coordinator::Target* made = new lockstep::coordinator::Target();
    std::atexit([] { delete made; });
    return made;
  }();
  for (size_t at = 0; at + 3 <= size;) {
    const size_t length = std::min<size_t>(data[at + 1] << 8 | data[at + 2], size - at - 3);
    target->Say(data[at], std::string(reinterpret_cast<const char*>(data + at + 3), length));
    at += 3 + length;
  }
  target->Check();
  return 0;
}
