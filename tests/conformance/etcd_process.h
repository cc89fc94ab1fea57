// SPDX-License-Identifier: Apache-2.0
// A real etcd for tests: one process with a folder and free ports of its own.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_ETCD_PROCESS_H_
#define LOCKSTEP_TESTS_CONFORMANCE_ETCD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "coordinator/store/etcd/client.h"
#include "coordinator/store/etcd/election.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

class EtcdProcess {
 public:
  // The one of this test program, started when it is first asked for and ended with it. Null: the
  // program `etcd` is not installed (Debian's etcd-server); tests skip then, and say so. One that
  // is installed and does not start ends the test program.
  static EtcdProcess* Shared();
  ~EtcdProcess();

  // With a prefix that no other caller gets.
  EtcdOptions NewOptions();
  EtcdOptions options(const std::string& prefix) const;
  // Raises the alarm of an etcd that has no space, or disarms it.
  void SetFull(bool full);
  // On 127.0.0.1.
  int port() const { return port_; }

 private:
  EtcdProcess() = default;
  void Start();
  // Returns whether it answers; false: it has ended, or does not answer for long.
  bool AwaitAnswer();
  // What it has said.
  std::string Log() const;

  std::string folder_;
  int port_ = 0;
  std::string endpoint_;
  pid_t pid_ = 0;
  int prefixes_ = 0;
};

// A store of a coordinator that leads, with all that it needs.
class LeadingStore : public Store {
 public:
  // Waits until it leads.
  explicit LeadingStore(const EtcdOptions& options);
  ~LeadingStore() override;

  absl::StatusOr<std::vector<StoredRow>> GetAll() override { return store_->GetAll(); }
  absl::StatusOr<int64_t> PutBatch(absl::Span<const Put> rows) override {
    return store_->PutBatch(rows);
  }
  bool Leads() override { return store_->Leads(); }
  Election& election() { return *election_; }
  EtcdClient& etcd() { return etcd_; }

 private:
  EtcdClient etcd_;
  std::unique_ptr<Election> election_;
  std::unique_ptr<Store> store_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_CONFORMANCE_ETCD_PROCESS_H_
