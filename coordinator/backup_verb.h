// SPDX-License-Identifier: Apache-2.0
// `coordinator backup` and `coordinator restore`: a copy of the journal, whichever store it is in,
// and an empty store filled from one. The copy is an SQLite database as in --state-dir, so a
// journal moves from one kind of store to the other in this way, too. With --audit `restore` leaves
// out tokens that were revoked after the copy was made. Thread-safety: called by main.
#ifndef LOCKSTEP_COORDINATOR_BACKUP_VERB_H_
#define LOCKSTEP_COORDINATOR_BACKUP_VERB_H_

#include <string>
#include <vector>

namespace lockstep::coordinator {

// `arguments`: those after the verb. Return the exit code: 0, 1 (it cannot be read or written; what
// is there would be replaced), 2 (usage).
int RunBackup(const std::vector<std::string>& arguments);
int RunRestore(const std::vector<std::string>& arguments);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_BACKUP_VERB_H_
