// SPDX-License-Identifier: Apache-2.0
// What one process of ours hands another on a host: the order that comes through ssh's pipe, an
// agent's messages to a supervisor's socket and its memory files, the launcher's to its spawner.
// Any bytes are one or an error; one that is taken comes back from its encoding.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/check.h"
#include "common/fd.h"
#include "launcher/local_run/ordered_guest.h"
#include "launcher/spawner/wire.h"
#include "launcher/supervisor/wire.h"
#include "proto/supervisor.pb.h"

namespace lockstep::launcher {
namespace {

void WriteAll(int fd, const std::string& bytes) {
  LS_CHECK_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

absl::StatusOr<GuestOrder> OrderOf(const std::string& bytes) {
  int ends[2];
  LS_CHECK_EQ(::pipe(ends), 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  WriteAll(in.get(), bytes);
  in.reset();
  return ReadOrder(out.get(), absl::Seconds(10));
}

}  // namespace
}  // namespace lockstep::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;            // NOLINT: a fuzz target is one function
  using namespace lockstep::launcher;  // NOLINT
  // As much as a pipe takes at once.
  const std::string bytes(reinterpret_cast<const char*>(data), std::min<size_t>(size, 60'000));

  if (const auto order = OrderOf(bytes); order.ok()) {
    const auto again = OrderOf(EncodeOrder(*order));
    LS_CHECK(again.ok() && again->SerializeAsString() == order->SerializeAsString());
  }

  if (const auto command = DecodeCommand(bytes); command.ok()) {
    LS_CHECK(DecodeCommand(EncodeCommand(*command)).ok());
  }

  int sockets[2];
  LS_CHECK_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFd supervisor(sockets[0]);
  UniqueFd agent(sockets[1]);
  if (!bytes.empty()) WriteAll(agent.get(), bytes);
  agent.reset();
  SupervisorCommand message;
  ReceiveMessage(supervisor.get(), &message).status().IgnoreError();

  const UniqueFd memory(::memfd_create("order", MFD_CLOEXEC));
  LS_CHECK(memory.valid());
  WriteAll(memory.get(), bytes);
  SupervisorSetup setup;
  if (ReadMemoryFile(memory.get(), &setup).ok()) {
    const auto again = MemoryFileOf(setup);
    LS_CHECK(again.ok() && ReadMemoryFile(again->get(), &setup).ok());
  }
  return 0;
}
