// SPDX-License-Identifier: Apache-2.0
// Whatever users, agents and workers say to a coordinator that has a node and a job, in whatever
// order: it goes on, what it wrote down is read back, and a token or a role lets nobody through.
//
// Records of a kind's byte, two bytes of length and a message (proto/coordinator*.proto). The
// kind's low 4 bits say what it is, the high ones whose.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "coordinator/core/access.h"
#include "coordinator/core/core.h"
#include "coordinator/core/tokens.h"
#include "coordinator/outbox/request_rows.h"

namespace lockstep::coordinator {
namespace {

class World {
 public:
  World() {
    state_.secret = "of the cluster";
    AgentSaid join;
    join.session = 1;
    AgentHello& hello = *join.message.mutable_hello();
    hello.set_node_id("n1");
    hello.set_incarnation("n1-1");
    hello.set_host("host-1");
    hello.set_slots(2);
    hello.set_protocol_version(1);
    Do(join);
    Submitted submitted{"job1", {}};
    submitted.request.mutable_spec()->set_name("mlp");
    submitted.request.mutable_spec()->mutable_resources()->set_nodes(1);
    submitted.request.mutable_spec()->mutable_resources()->set_nproc_per_node(2);
    submitted.request.mutable_spec()->mutable_train()->set_shards(2);
    submitted.request.set_user("ann");
    Do(submitted);
  }

  void Say(uint8_t kind, const std::string& bytes) {
    const int whose = kind >> 4;
    Requester by;
    by.set_user(whose % 2 == 0 ? "ann" : "bob");
    by.set_role(static_cast<Role>(1 + whose % 4));
    switch (kind & 15) {
      case 0:
        return Ask<SubmitJobRequest>(bytes, [&](const SubmitJobRequest& m) {
          Submitted event{absl::StrCat("x", ++jobs_), m};
          *event.request.mutable_by() = by;
          return event;
        });
      case 1:
        return Ask<CancelJobRequest>(bytes, [&](const CancelJobRequest& m) {
          return CancelRequested{m.job_id(), m.kill(), by};
        });
      case 2:
        return Ask<ScaleJobRequest>(bytes, [&](const ScaleJobRequest& m) {
          return ScaleRequested{m.job_id(), m.workers(), by};
        });
      case 3:
        return Ask<DrainNodeRequest>(bytes, [&](const DrainNodeRequest& m) {
          return DrainRequested{m.node(), m.reason(), m.user(), by};
        });
      case 4:
        return Ask<HoldJobRequest>(bytes, [&](const HoldJobRequest& m) {
          return HoldRequested{m.job_id(), m.release(), by};
        });
      case 5:
        return Ask<TokenRecord>(bytes, [&](const TokenRecord& m) {
          TokenCreated event{m};
          event.record.mutable_info()->set_id(absl::StrCat("t", ++tokens_));
          *event.record.mutable_by() = by;
          return event;
        });
      case 6:
        return Ask<RevokeTokenRequest>(bytes, [&](const RevokeTokenRequest& m) {
          return TokenRevoked{m.id(), by};
        });
      case 7:
        return Do(UndrainRequested{bytes, by});
      case 8:
      case 9: {
        AgentSaid event;
        event.session = static_cast<SessionId>(1 + whose % 4);
        if (event.message.ParseFromString(bytes)) Do(event);
        return;
      }
      case 10:
      case 11: {
        WorkerSaid event;
        event.session = static_cast<SessionId>(101 + whose % 4);
        if (whose >= 8) event.shown = absl::StrCat("job1.", whose % 2, ".1");
        if (event.message.ParseFromString(bytes)) Do(event);
        return;
      }
      case 12:
        return Do(AgentGone{static_cast<SessionId>(1 + whose % 4)});
      case 13:
        return Do(WorkerGone{static_cast<SessionId>(101 + whose % 4)});
      default:
        now_ += absl::Milliseconds(10 << whose);
        return Do(Tick{});
    }
  }

  // Another coordinator goes on from what was written.
  void Check() const {
    std::vector<Row> rows;
    for (const auto& [key, value] : rows_) rows.push_back({key, value});
    const auto restored = Restore(rows, Options(), now_);
    LS_CHECK(restored.ok()) << restored.status();
    LS_CHECK_EQ(restored->jobs.size(), state_.jobs.size());
    for (const auto& [id, record] : state_.tokens) {
      LS_CHECK(record.info().role() != ROLE_WORKER && !record.info().user().empty());
    }
  }

 private:
  template <typename Message, typename Make>
  void Ask(const std::string& bytes, const Make& make) {
    Message message;
    if (!message.ParseFromString(bytes)) return;
    const Event event = make(message);
    // As the journal keeps it until it is carried out.
    const auto stored = ParseRequestRow(RequestRow(1, event));
    LS_CHECK(stored.ok()) << stored.status();
    Do(stored->event);
  }
  void Do(const Event& event) {
    now_ += absl::Milliseconds(1);
    const Effects effects = Step(state_, event, now_);
    for (const Row& row : effects.rows) {
      if (row.erased) {
        rows_.erase(row.key);
      } else {
        rows_[row.key] = row.value;
      }
    }
  }

  State state_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::map<std::string, std::string> rows_;
  int jobs_ = 0;
  int tokens_ = 0;
};

}  // namespace
}  // namespace lockstep::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::coordinator::World world;
  while (size >= 3) {
    const size_t length = static_cast<size_t>(data[1] | data[2] << 8);
    if (size < 3 + length) break;
    world.Say(data[0], std::string(reinterpret_cast<const char*>(data + 3), length));
    data += 3 + length;
    size -= 3 + length;
  }
  world.Check();
  return 0;
}
