// SPDX-License-Identifier: Apache-2.0
// The question to NCCL's watch, against a server that answers as NCCL does.
#include "collectives/nccl/ras_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Answers one connection: a line for each line, then the rest and the end.
class Server {
 public:
  explicit Server(std::vector<std::string> answers)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), answers_(std::move(answers)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_.get(), 1), 0);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this] { Serve(); });
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::string asked() {
    thread_.join();
    return asked_;
  }

 private:
  void Serve() {
    const UniqueFd peer(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    for (const std::string& answer : answers_) {
      char c = 0;
      while (c != '\n' && ::read(peer.get(), &c, 1) == 1) asked_ += c;
      ::send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  UniqueFd fd_;
  int port_ = 0;
  const std::vector<std::string> answers_;
  std::string asked_;
  std::jthread thread_;
};

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

TEST(RasClient, AsksForTheStatus) {
  Server server({"SERVER PROTOCOL 2\n", "OK\n", "NCCL version 2.28.9\n  1 communicator\n"});
  const auto report = QueryRas(server.address(), Soon());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(*report, "NCCL version 2.28.9\n  1 communicator\n");
  EXPECT_THAT(server.asked(), testing::MatchesRegex("CLIENT PROTOCOL 2\nTIMEOUT 1[0-9]\nSTATUS\n"));
}

TEST(RasClient, SaysWhatIsWrong) {
  Server other({"HTTP/1.1 400 Bad Request\n"});
  EXPECT_THAT(std::string(QueryRas(other.address(), Soon()).status().message()),
              HasSubstr("it is not NCCL that answers"));
  Server ended({});
  EXPECT_EQ(QueryRas(ended.address(), Soon()).status().code(), absl::StatusCode::kUnavailable);
  Server refuses({"SERVER PROTOCOL 3\n", "ERROR: what?\n"});
  EXPECT_THAT(std::string(QueryRas(refuses.address(), Soon()).status().message()),
              HasSubstr("ERROR: what?"));
  EXPECT_EQ(QueryRas("nothing", Soon()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RasClient, NobodyThereIsUnavailable) {
  std::string address;
  {
    Server server({});
    address = server.address();
    EXPECT_FALSE(QueryRas(address, Soon()).ok());
  }
  const auto report = QueryRas(address, Soon());
  EXPECT_EQ(report.status().code(), absl::StatusCode::kUnavailable) << report.status();
  EXPECT_THAT(std::string(report.status().message()), HasSubstr(address));
}

TEST(RasClient, TheDigestKeepsWhatIsBad) {
  const std::string report =
      "Job summary\n  Nodes 1\n\nErrors\n  INCOMPLETE\n  Missing communicator data from 1 job "
      "process\n  Warnings\n";
  EXPECT_EQ(RasDigest(report, 2), "Errors; INCOMPLETE");
  EXPECT_EQ(RasDigest("Job summary\n\n all well\n", 5), "Job summary; all well");
}

}  // namespace
}  // namespace lockstep
