// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/node_record.h"

#include <algorithm>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

NodeRecord ToRecord(const Node& node) {
  NodeRecord record;
  record.set_node_id(node.id);
  record.set_incarnation(node.incarnation);
  record.set_host(node.host);
  record.set_slots(node.slots);
  for (const Device& device : node.devices) *record.add_devices() = device;
  record.set_is_private(node.is_private);
  record.set_private_job(node.private_job);
  record.set_cores(node.cores);
  record.set_memory(node.memory);
  for (const NumaNode& numa : node.numa) *record.add_numa() = numa;
  if (node.drain) *record.mutable_drain() = ToProto(*node.drain);
  for (const NodeFailure& failure : node.trust.failures) {
    NodeFailureRecord& written = *record.add_failures();
    *written.mutable_time() = ToProto(failure.time);
    written.set_what(failure.what);
    written.set_job_id(failure.job_id);
  }
  record.set_times_left_out(node.trust.times);
  if (node.trust.until != absl::InfinitePast()) {
    *record.mutable_left_out_until() = ToProto(node.trust.until);
  }
  record.set_left_out_reason(node.trust.reason);
  record.mutable_labels()->insert(node.labels.begin(), node.labels.end());
  if (node.owner) record.set_owner(*node.owner);
  return record;
}

void FromRecord(const NodeRecord& record, const TrustRules& rules, absl::Time now, Node& node) {
  node.id = record.node_id();
  node.incarnation = record.incarnation();
  node.host = record.host();
  node.slots = record.slots();
  node.devices.assign(record.devices().begin(), record.devices().end());
  node.is_private = record.is_private();
  node.private_job = record.private_job();
  node.cores = record.cores();
  node.memory = record.memory();
  node.numa.assign(record.numa().begin(), record.numa().end());
  if (record.has_drain()) {
    node.drain = DrainOrder{record.drain().reason(), record.drain().user(),
                            FromProto(record.drain().since())};
  }
  for (const NodeFailureRecord& failure : record.failures()) {
    // The clock by which they were written may have been ahead of this one.
    node.trust.failures.push_back(
        {std::min(FromProto(failure.time()), now), failure.what(), failure.job_id()});
  }
  node.trust.times = record.times_left_out();
  if (record.has_left_out_until()) {
    node.trust.until = std::min(FromProto(record.left_out_until()), now + rules.longest);
  }
  node.trust.reason = record.left_out_reason();
  node.labels = {record.labels().begin(), record.labels().end()};
  if (record.has_owner()) node.owner = record.owner();
}

}  // namespace lockstep::coordinator
