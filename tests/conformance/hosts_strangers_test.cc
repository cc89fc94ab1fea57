// SPDX-License-Identifier: Apache-2.0
// What may come over a network between hosts: damage, cuts, repeats, strangers.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/group_end.h"
#include "collectives/hosts/hosts_transport.h"
#include "collectives/tcp/address.h"
#include "collectives/tcp/handshake.h"
#include "collectives/tcp/wire.h"
#include "common/check.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::EndsWith;
using testing::HasSubstr;

absl::Time Never() { return absl::Now() + absl::Seconds(100); }

UniqueFd Dial(int port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = ParseSocketAddress(absl::StrCat("127.0.0.1:", port));
  LS_CHECK_EQ(::connect(socket.get(), address->get(), address->size), 0);
  return socket;
}

// Stands between the rank that connects and the one that accepts. `change` sees what the first one
// sends, with its place in the stream, and returns what goes on; "cut" ends the connection.
class Proxy {
 public:
  using Change = std::function<std::string(size_t at, const std::string& bytes)>;

  // `back` is the same for what the other one sends.
  Proxy(int target, Change change, Change back = nullptr)
      : change_(std::move(change)), back_(std::move(back)) {
    auto listener = Listener::Open({{"127.0.0.1"}});
    LS_CHECK(listener.ok());
    listener_ = *std::move(listener);
    thread_ = std::jthread([this, target] { Serve(target); });
  }
  ~Proxy() {
    stop_ = true;
    if (there_.valid()) ::shutdown(there_.get(), SHUT_RDWR);
    if (here_.valid()) ::shutdown(here_.get(), SHUT_RDWR);
  }
  int port() const { return listener_.port(); }

 private:
  void Serve(int target) {
    while (!here_.valid() && !stop_) {
      here_ = UniqueFd(
          ::accept4(listener_.sockets()[0].get(), nullptr, nullptr, SOCK_CLOEXEC));  // polls
      std::this_thread::yield();
    }
    if (stop_) return;
    there_ = Dial(target);
    std::jthread back([this] { Pass(there_.get(), here_.get(), back_); });
    Pass(here_.get(), there_.get(), change_);
  }
  static void Pass(int from, int to, const Change& change) {
    char buffer[4096];
    size_t at = 0;
    for (ssize_t got; (got = ::recv(from, buffer, sizeof(buffer), 0)) > 0;) {
      std::string bytes(buffer, static_cast<size_t>(got));
      if (change != nullptr) bytes = change(at, bytes);
      if (bytes == "cut") break;
      at += static_cast<size_t>(got);
      ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    ::shutdown(from, SHUT_RDWR);
    ::shutdown(to, SHUT_RDWR);
  }

  const Change change_, back_;
  Listener listener_;
  std::atomic<bool> stop_{false};
  UniqueFd here_, there_;
  std::jthread thread_;
};

// Returns a port at which nobody listens.
int ClosedPort() {
  const auto gone = Listener::Open({{"127.0.0.1"}});
  LS_CHECK(gone.ok());
  return gone->port();
}

std::unique_ptr<HostsTransport> NewTransport() {
  HostsTransport::Options options;
  options.shm.arena_bytes = 1 << 20;
  auto transport = HostsTransport::Create(options);
  LS_CHECK(transport.ok()) << transport.status().ToString();
  return *std::move(transport);
}

// Member `rank`, on a host of its own ("a", "b", ...), found at `addresses`.
GroupMember MemberAt(int rank, const Transport& transport, std::vector<std::string> addresses) {
  GroupMember member;
  member.rank = rank;
  member.host = member.node = std::string(1, static_cast<char>('a' + rank));
  member.shm_address = transport.address();
  member.key = transport.key();
  member.shards = {rank, rank + 1};
  member.tcp_addresses = std::move(addresses);
  return member;
}

// Two ranks, each on a host of its own.
struct Pair {
  std::unique_ptr<HostsTransport> transports[2] = {NewTransport(), NewTransport()};
  // Where rank 1 looks for rank 0.
  std::vector<std::string> addresses = {absl::StrCat("127.0.0.1:", transports[0]->tcp_port())};

  GroupSpec Spec(int rank, int64_t generation = 1) const {
    GroupSpec spec{generation, "job", "the secret", {}, rank};
    for (int r = 0; r < 2; ++r) spec.members.push_back(MemberAt(r, *transports[r], addresses));
    return spec;
  }

  // Returns what each rank's calls come to.
  std::vector<absl::Status> Run(const std::function<absl::Status(Communicator&)>& body,
                                int64_t generation = 1) {
    std::vector<absl::Status> results(2);
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < 2; ++r) {
        threads.emplace_back([&, r] {
          auto communicator = transports[r]->Connect(Spec(r, generation), Never());
          results[r] = communicator.ok() ? body(**communicator) : communicator.status();
        });
      }
    }
    return results;
  }
};

absl::Status SumManyTimes(Communicator& c) {
  std::vector<float> data(5000, 1.0f);
  for (int i = 0; i < 20; ++i) {
    const absl::Status status = c.AllReduce(data.data(), 5000, DType::kFloat32, ReduceOp::kMax,
                                            ReduceOrder::kFixed, Never());
    if (!status.ok()) return status;
    if (data != std::vector<float>(5000, 1.0f)) return absl::InternalError("wrong sums");
  }
  return absl::OkStatus();
}

constexpr size_t kHandshake = kHelloBytes + kProofBytes;

// Runs with a proxy that changes what rank 1 sends to rank 0.
std::vector<absl::Status> RunChanged(const Proxy::Change& change) {
  Pair pair;
  Proxy proxy(pair.transports[0]->tcp_port(), change);
  pair.addresses = {absl::StrCat("127.0.0.1:", proxy.port())};
  return pair.Run(SumManyTimes);
}

TEST(HostsStrangersTest, AFlippedByteEndsTheGenerationAndNamesBothEnds) {
  // In a header, in a payload of few bytes, in one of many.
  for (const size_t place : {kHandshake + 10, kHandshake + kFrameBytes + 300, size_t{100'001}}) {
    const auto results = RunChanged([&](size_t at, std::string bytes) {
      if (at <= place && place < at + bytes.size()) bytes[place - at] ^= 0x20;
      return bytes;
    });
    EXPECT_EQ(results[0].code(), absl::StatusCode::kAborted) << results[0];
    EXPECT_THAT(std::string(results[0].message()), HasSubstr("is damaged"));
    EXPECT_THAT(std::string(results[0].message()),
                HasSubstr("rank 1 (host b) and rank 0 (host a)"));
    EXPECT_EQ(EndOf(results[0]), (GroupEnd{EndCause::kDamaged, 1}));
    EXPECT_EQ(EndOf(results[0]).lost_rank(), -1) << "nobody is to blame";
    // The other end is told.
    EXPECT_EQ(results[1].code(), absl::StatusCode::kAborted) << results[1];
    EXPECT_THAT(std::string(results[1].message()), HasSubstr("is damaged"));
  }
}

TEST(HostsStrangersTest, ARepeatedFrameIsSeen) {
  std::string stream;
  bool done = false;
  const auto results = RunChanged([&](size_t, const std::string& bytes) -> std::string {
    stream += bytes;
    const size_t end = kHandshake + kFrameBytes;
    if (done || stream.size() < end + kFrameBytes) return bytes;
    done = true;
    return bytes + stream.substr(kHandshake, kFrameBytes);
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kAborted) << results[0];
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("is damaged"));
}

TEST(HostsStrangersTest, ACutConnectionEndsTheWaitOfBoth) {
  const auto results =
      RunChanged([](size_t at, const std::string& bytes) { return at > 50'000 ? "cut" : bytes; });
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(results[r].code(), absl::StatusCode::kAborted) << results[r];
    EXPECT_EQ(EndOf(results[r]).lost_rank(), 1 - r) << results[r];
  }
}

TEST(HostsStrangersTest, AfterDamageTheNextGenerationWorks) {
  Pair pair;
  {
    Proxy proxy(pair.transports[0]->tcp_port(), [](size_t at, std::string bytes) {
      if (at > 20'000) bytes[0] ^= 1;
      return bytes;
    });
    const auto addresses =
        std::exchange(pair.addresses, {absl::StrCat("127.0.0.1:", proxy.port())});
    EXPECT_FALSE(pair.Run(SumManyTimes)[0].ok());
    pair.addresses = addresses;
  }
  for (const absl::Status& status : pair.Run(SumManyTimes, 2)) EXPECT_TRUE(status.ok()) << status;
}

TEST(HostsStrangersTest, StrangersNeitherJoinNorHinder) {
  Pair pair;
  std::vector<UniqueFd> strangers;
  const auto come = [&](const std::string& text) {
    strangers.push_back(Dial(pair.transports[0]->tcp_port()));
    if (!text.empty()) ::send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
  };
  // Silent ones, more than may stand at the door; some that say half a word; others' protocols.
  for (int i = 0; i < 150; ++i) come("");
  for (int i = 0; i < 20; ++i) come("LSTCPHI1");
  come("GET / HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(200, 'x'));
  come(std::string(100'000, '\0'));
  // One that knows everything but the secret, and one that repeats what another said.
  const Identity identity{"job", 1, 1, 0};
  come(ClientHandshake(identity, "a guess").hello() + "LSTCPPR1" + std::string(32, 'x'));
  come(ClientHandshake(identity, "the secret").hello() + "LSTCPPR1" + std::string(32, 'x'));
  // One that has gone again.
  come("");
  strangers.pop_back();
  for (const absl::Status& status : pair.Run(SumManyTimes)) EXPECT_TRUE(status.ok()) << status;
}

// Rank 1 did its part of a reduction and did not get all of the result: it knows of none, whatever
// rank 0 has.
TEST(HostsStrangersTest, WhoHasNotGotAllKnowsOfNoReduction) {
  constexpr int64_t kCount = 120'000;
  // All that rank 0 sends: the handshake, its call, half of the vector as its part and half as
  // sums.
  constexpr size_t kAll =
      kChallengeBytes + kWelcomeBytes + 11 * kFrameBytes + kCount * sizeof(float);
  Pair pair;
  Proxy proxy(
      pair.transports[0]->tcp_port(), [](size_t, const std::string& bytes) { return bytes; },
      [](size_t at, const std::string& bytes) {
        return at >= kAll ? std::string()
                          : bytes.substr(0, kAll - 1000 - std::min(at, kAll - 1000));
      });
  pair.addresses = {absl::StrCat("127.0.0.1:", proxy.port())};
  std::atomic<bool> reduced{false};
  std::vector<std::jthread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      auto joined = pair.transports[r]->Connect(pair.Spec(r), Never());
      ASSERT_TRUE(joined.ok()) << joined.status();
      Communicator& c = **joined;
      EXPECT_FALSE(c.abilities().keeps_reductions);
      auto* data = static_cast<float*>(*pair.transports[r]->Allocate(kCount * 4, "a node"));
      std::fill_n(data, kCount, 1.0f);
      const NodeBuffer node{{r, r + 1}, data};
      const TreeReduceArgs args{absl::MakeConstSpan(&node, 1), kCount, data, 7, 0};
      std::jthread watchdog([&] {
        while (r == 1 && !reduced) std::this_thread::yield();
        if (r == 1) c.Abort("over");
      });
      const auto status = c.TreeReduce(args, Never()).status();
      EXPECT_EQ(status.ok(), r == 0) << status;
      if (r == 0) reduced = true;
      const auto newest = c.NewestReduce();
      ASSERT_EQ(newest.has_value(), r == 0);
      if (r != 0) return;
      EXPECT_TRUE(newest->whole);
      EXPECT_EQ(newest->step, 7);
    });
  }
}

// What becomes of an attempt that cannot succeed. On a busy machine it may end before it has come
// to what it should say: then again with more time.
absl::Status FailToConnect(Transport& transport, const GroupSpec& spec, const std::string& says) {
  absl::Status status;
  for (absl::Duration limit = absl::Milliseconds(100);
       !absl::StrContains(status.message(), says) && limit < absl::Minutes(1); limit *= 2) {
    status = transport.Connect(spec, absl::Now() + limit).status();
  }
  return status;
}

TEST(HostsStrangersTest, AnOlderGenerationIsTurnedAway) {
  Pair pair;
  std::jthread old([&] {
    // Rank 1 is still in generation 1 while rank 0 joins the second.
    const absl::Status late =
        FailToConnect(*pair.transports[1], pair.Spec(1, 1), "generation 2 is joined here");
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("generation 2 is joined here"));
    auto joined = pair.transports[1]->Connect(pair.Spec(1, 2), Never());
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE((*joined)->Barrier(Never()).ok());
  });
  auto joined = pair.transports[0]->Connect(pair.Spec(0, 2), Never());
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE((*joined)->Barrier(Never()).ok());
}

TEST(HostsStrangersTest, AddressesAreTriedInTurn) {
  Pair pair;
  // One where nobody listens, one that never answers, one that is none; then the right one.
  auto silent = Listener::Open({{"127.0.0.1"}});
  ASSERT_TRUE(silent.ok());
  const int closed = ClosedPort();
  pair.addresses.insert(pair.addresses.begin(),
                        {absl::StrCat("127.0.0.1:", closed),
                         absl::StrCat("127.0.0.1:", silent->port()), "nowhere:1"});
  for (const absl::Status& status : pair.Run(SumManyTimes)) EXPECT_TRUE(status.ok()) << status;
}

TEST(HostsStrangersTest, WhatWasMetAtEachAddressIsTold) {
  Pair pair;
  const auto silent = Listener::Open({{"127.0.0.1"}});  // its kernel accepts, and nobody else
  ASSERT_TRUE(silent.ok());
  pair.addresses = {absl::StrCat("127.0.0.1:", ClosedPort()),
                    absl::StrCat("127.0.0.1:", silent->port())};
  const std::string connected = "connected, but the worker does not answer";
  const absl::Status missing = FailToConnect(*pair.transports[1], pair.Spec(1), connected);
  EXPECT_EQ(missing.message(),
            absl::StrCat("rank 1 (host b) cannot reach rank 0 (host a) at ", pair.addresses[0],
                         ": Connection refused, at ", pair.addresses[1], ": ", connected));
}

// There is no way between ranks 1 and 2; rank 0 finds both, and hears from them what they met.
TEST(HostsStrangersTest, WhoGivesUpIsNotTakenForDead) {
  const std::unique_ptr<HostsTransport> transports[3] = {NewTransport(), NewTransport(),
                                                         NewTransport()};
  const int closed = ClosedPort();
  absl::Status heard = absl::DeadlineExceededError("");
  // Again with more time where rank 0 did not come to connect.
  int64_t generation = 0;
  for (absl::Duration limit = absl::Milliseconds(200);
       absl::IsDeadlineExceeded(heard) && limit < absl::Minutes(1); limit *= 2) {
    ++generation;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank, limit, generation] {
        GroupSpec spec{generation, "job", "the secret", {}, rank};
        for (int r = 0; r < 3; ++r) {
          const bool reached = rank == 0 || r == 0 || r == rank;
          const int port = reached ? transports[r]->tcp_port() : closed;
          spec.members.push_back(MemberAt(r, *transports[r], {absl::StrCat("127.0.0.1:", port)}));
        }
        auto joined = transports[rank]->Connect(spec, absl::Now() + limit);
        EXPECT_TRUE(rank == 0 || absl::IsDeadlineExceeded(joined.status())) << joined.status();
        if (rank == 0) heard = joined.ok() ? (*joined)->Barrier(Never()) : joined.status();
      });
    }
  }
  EXPECT_TRUE(absl::IsAborted(heard)) << heard;
  const GroupEnd end = EndOf(heard);
  EXPECT_EQ(end.cause, EndCause::kUnreachable) << heard;
  EXPECT_TRUE(end.hearsay && (end.rank == 1 || end.rank == 2)) << heard;
  EXPECT_THAT(std::string(heard.message()),
              AnyOf(HasSubstr("rank 2 (host c) cannot reach rank 1 (host b) at 127.0.0.1:"),
                    HasSubstr("rank 2 (host c) has not come to rank 1 (host b)")));
  EXPECT_THAT(std::string(heard.message()), HasSubstr("(says rank "));
}

// Rank 0 has taken rank 1 in, who gives up before it knows.
TEST(HostsStrangersTest, WhoGivesUpBeforeItIsWelcomeIsNotTakenForDead) {
  Pair pair;
  absl::Status heard = absl::DeadlineExceededError("");
  // Again with more time where they did not come so far.
  int64_t generation = 0;
  for (absl::Duration limit = absl::Milliseconds(200);
       absl::IsDeadlineExceeded(heard) && limit < absl::Minutes(1); limit *= 2) {
    ++generation;
    Proxy proxy(pair.transports[0]->tcp_port(), nullptr, [](size_t at, const std::string& bytes) {
      return bytes.substr(0, kChallengeBytes - std::min(at, kChallengeBytes));
    });
    pair.addresses = {absl::StrCat("127.0.0.1:", proxy.port())};
    std::jthread late([&, limit] {
      const auto joined =
          pair.transports[1]->Connect(pair.Spec(1, generation), absl::Now() + limit).status();
      EXPECT_TRUE(absl::IsDeadlineExceeded(joined)) << joined;
    });
    auto joined = pair.transports[0]->Connect(pair.Spec(0, generation), absl::Now() + limit);
    heard = joined.ok() ? (*joined)->Barrier(Never()) : joined.status();
  }
  EXPECT_TRUE(absl::IsAborted(heard)) << heard;
  EXPECT_EQ(EndOf(heard), (GroupEnd{EndCause::kPeerLeft, 1})) << heard;
  EXPECT_THAT(std::string(heard.message()),
              HasSubstr("rank 1 (host b) cannot reach rank 0 (host a) at 127.0.0.1:"));
}

TEST(HostsStrangersTest, OverIpv6) {
  UniqueFd probe(::socket(AF_INET6, SOCK_STREAM, 0));
  const auto loopback = ParseHostAddress("::1", 0);
  if (!probe.valid() || ::bind(probe.get(), loopback->get(), loopback->size) != 0) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  Pair pair;
  pair.addresses = {absl::StrCat("[::1]:", pair.transports[0]->tcp_port())};
  for (const absl::Status& status : pair.Run(SumManyTimes)) EXPECT_TRUE(status.ok()) << status;
}

TEST(HostsStrangersTest, ANodeWithoutAnAddressIsNamedAtOnceByLowerRanksToo) {
  Pair pair;
  for (const int without : {0, 1}) {
    GroupSpec spec = pair.Spec(1 - without);
    spec.members[static_cast<size_t>(without)].tcp_addresses.clear();
    const absl::Status status = pair.transports[1 - without]->Connect(spec, Never()).status();
    EXPECT_EQ(EndOf(status), (GroupEnd{EndCause::kUnreachable, without})) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("than rank ", without, " (host ", without == 0 ? "a" : "b",
                                       "), whose node has no address")));
  }
}

TEST(HostsStrangersTest, WhoCannotBeReachedIsNamedWithBothEndsAndTheReason) {
  Pair pair;
  const int closed = ClosedPort();
  pair.addresses = {absl::StrCat("127.0.0.1:", closed)};
  const std::string tried = absl::StrCat(" at 127.0.0.1:", closed, ": ");
  const absl::Status missing = FailToConnect(*pair.transports[1], pair.Spec(1), tried);
  EXPECT_EQ(missing.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr(absl::StrCat("rank 1 (host b) cannot reach rank 0 (host a)", tried,
                                     "Connection refused")));
  EXPECT_EQ(EndOf(missing), (GroupEnd{EndCause::kPeerMissing, 0}));
  // Of several all are named, and of very many at least their ranks.
  GroupSpec many = pair.Spec(1);
  for (int rank = 2; rank < 20; ++rank) {
    GroupMember member = many.members[0];
    member.rank = rank;
    member.node = member.host = absl::StrCat("h", rank);
    member.shards = {rank, rank + 1};
    many.members.push_back(member);
  }
  const absl::Status all = FailToConnect(*pair.transports[1], many, tried);
  for (const char* const named :
       {"rank 1 (host b) cannot reach rank 0 (host a) at 127.0.0.1:",
        "; rank 2 (host h2) has not come to rank 1 (host b); rank 3 (host h3) has not",
        "; nor have ranks 17, 18, 19"}) {
    EXPECT_THAT(std::string(all.message()), HasSubstr(named));
  }
  const std::vector<MissingRank> each = MissingOf(all);
  ASSERT_EQ(each.size(), 19u);
  EXPECT_THAT(each[0].text, EndsWith("Connection refused"));
  EXPECT_EQ(each[18].rank, 19);
  EXPECT_EQ(each[18].text, "rank 19 (host h19) has not come to rank 1 (host b)");
  GroupSpec spec = pair.Spec(1);
  spec.reach_within = absl::Milliseconds(1);
  EXPECT_EQ(EndOf(pair.transports[1]->Connect(spec, Never()).status()),
            (GroupEnd{EndCause::kPeerMissing, 0}));
  spec.secret.clear();
  EXPECT_EQ(pair.transports[1]->Connect(spec, Never()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lockstep
