// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/farewells.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/tcp/departure.h"
#include "common/check.h"
#include "common/clock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr uint32_t kPart = 256 << 10;
constexpr int kParts = 64;  // more than the kernel takes of what nobody reads

absl::Time Soon() { return Clock::Real()->Now() + absl::Seconds(60); }

Connection Over(int socket, int rank) {
  Connection connection;
  connection.rank = rank;
  connection.socket = UniqueFd(socket);
  return connection;
}

// Two ends of a TCP connection on this machine.
struct Ends {
  Ends() {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    LS_CHECK_EQ(::bind(listener.get(), any, size), 0);
    LS_CHECK_EQ(::listen(listener.get(), 1), 0);
    LS_CHECK_EQ(::getsockname(listener.get(), any, &size), 0);
    const int from = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    LS_CHECK_EQ(::connect(from, any, size), 0);
    mine = std::make_unique<Link>(Over(from, 1), 1);
    theirs = std::make_unique<Link>(
        Over(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), 0), 1);
  }

  // Begins frames of `payload` until the connection takes no more.
  int Fill(const std::string& payload) {
    OutgoingFrame frame;
    frame.header.kind = FrameKind::kData;
    frame.header.bytes = static_cast<uint32_t>(payload.size());
    frame.payload = payload.data();
    bool moved = false;
    int begun = 0;
    while (!mine->sending() && begun < kParts) {
      ++begun;
      mine->Begin(frame);
      LS_CHECK(mine->Write(&moved).ok());
    }
    LS_CHECK(mine->sending()) << "the connection takes everything";
    return begun;
  }

  // Reads what comes to the goodbye. The frames before it have to be whole.
  std::optional<Goodbye> ReadToGoodbye(int* frames) {
    std::string payload;
    const absl::Time until = Soon();
    while (Clock::Real()->Now() < until) {
      bool moved = false;
      theirs->NoteReadable();
      const auto header = theirs->ReadHeader(&moved);
      if (!header.ok()) return std::nullopt;
      if (*header == nullptr) continue;
      const FrameHeader now = **header;
      if (!theirs->placed()) {
        payload.resize(now.bytes + 1);
        theirs->Place(payload.data());
      }
      const auto whole = theirs->ReadPayload(&moved);
      if (!whole.ok()) return std::nullopt;
      if (!*whole) continue;
      if (now.kind == FrameKind::kGoodbye) return ParseGoodbye(now, payload.substr(0, now.bytes));
      ++*frames;
    }
    return std::nullopt;
  }

  std::unique_ptr<Link> mine, theirs;
};

const Goodbye kReason{absl::StatusCode::kFailedPrecondition, {EndCause::kMismatch, 2}, "a reason"};

TEST(FarewellsTest, AFrameThatWasBegunGoesFirstHoweverLateThePeerReads) {
  Ends ends;
  std::string payload(kPart, 'x');
  const int begun = ends.Fill(payload);
  Farewells farewells;
  farewells.Send(kReason, {ends.mine.get()}, -1);
  // The memory is the next generation's now.
  std::memset(payload.data(), 'y', payload.size());
  int frames = 0;
  const auto goodbye = ends.ReadToGoodbye(&frames);
  ASSERT_TRUE(goodbye.has_value()) << "after " << frames << " of " << begun << " frames";
  EXPECT_EQ(frames, begun);
  EXPECT_EQ(goodbye->text, "a reason");
  EXPECT_EQ(goodbye->end, kReason.end);
  farewells.AwaitTaken(Soon());
  EXPECT_FALSE(ends.mine->open());
}

// What this rank has not read makes a reset of its close.
TEST(FarewellsTest, NothingIsClosedBeforeThePeerHasTheGoodbye) {
  Ends ends;
  std::string payload(kPart, 'x');
  const int begun = ends.Fill(payload);
  Farewells farewells;
  farewells.Send(kReason, {ends.mine.get()}, -1);
  LS_CHECK_EQ(::send(ends.theirs->socket(), "unread", 6, MSG_NOSIGNAL), 6);
  Thread closing("closing", [&] { farewells.AwaitTaken(Soon()); });
  int frames = 0;
  const auto goodbye = ends.ReadToGoodbye(&frames);
  ASSERT_TRUE(goodbye.has_value()) << "after " << frames << " of " << begun << " frames";
  EXPECT_EQ(goodbye->text, "a reason");
}

TEST(FarewellsTest, APeerThatIsGoneOrLostIsNotWaitedFor) {
  Ends gone, lost;
  const std::string payload(kPart, 'x');
  gone.Fill(payload);
  lost.Fill(payload);
  Farewells farewells;
  gone.theirs->Close();
  farewells.Send(kReason, {gone.mine.get()}, -1);
  farewells.AwaitTaken(absl::InfiniteFuture());
  Farewells others;
  others.Send(kReason, {lost.mine.get()}, /*unheard=*/1);
  others.AwaitTaken(absl::InfiniteFuture());
  EXPECT_FALSE(gone.mine->open() || lost.mine->open());
}

TEST(FarewellsTest, APeerThatReadsNothingIsWaitedForNoLongerThanAllowed) {
  Ends ends;
  const std::string part(kPart, 'x');  // a link sends what its callers keep
  ends.Fill(part);
  Farewells farewells;
  farewells.Send(kReason, {ends.mine.get()}, -1);
  farewells.AwaitTaken(Clock::Real()->Now());
  EXPECT_FALSE(ends.mine->open());
}

TEST(DepartureTest, ThePeersHearOfItWhileItsOwnerDoesOtherThings) {
  Ends ends;
  const std::string part(kPart, 'x');
  const int begun = ends.Fill(part);
  std::vector<std::unique_ptr<Link>> links;
  links.push_back(std::move(ends.mine));
  const Departure departure(kReason, std::move(links), Soon());
  int frames = 0;
  const auto goodbye = ends.ReadToGoodbye(&frames);
  ASSERT_TRUE(goodbye.has_value()) << "after " << frames << " of " << begun << " frames";
  EXPECT_EQ(goodbye->text, "a reason");
}

}  // namespace
}  // namespace lockstep
