// SPDX-License-Identifier: Apache-2.0
// What comes over TCP before and after its sender is known: hellos, challenges, proofs, frames; and
// the addresses that peers publish.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "collectives/tcp/address.h"
#include "collectives/tcp/handshake.h"
#include "collectives/tcp/wire.h"

// libFuzzer's entry point: its name is fixed.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto cut = [&](size_t bytes) {
    std::string part = text.substr(0, bytes);
    part.resize(bytes, '\0');
    return part;
  };
  const lockstep::Identity identity{"job", 5, 2, 0};
  lockstep::ServerHandshake server(identity, "secret");
  int from = -1;
  (void)server.Answer(cut(lockstep::kHelloBytes), &from);
  (void)server.Finish(cut(lockstep::kProofBytes));
  lockstep::ClientHandshake client(identity, "secret");
  (void)client.Answer(cut(lockstep::kChallengeBytes));
  (void)client.Finish(cut(lockstep::kWelcomeBytes));
  (void)lockstep::DecodeFrame(cut(lockstep::kFrameBytes).data(), 0, 1, 1);
  lockstep::FrameHeader header;
  header.part = static_cast<uint32_t>(size);
  if (size >= sizeof(header.offset)) std::memcpy(&header.offset, data, sizeof(header.offset));
  (void)lockstep::ParseGoodbye(header, text);
  (void)lockstep::ParseSocketAddress(text);
  return 0;
}
