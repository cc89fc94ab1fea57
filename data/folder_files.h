// SPDX-License-Identifier: Apache-2.0
// The files of a folder that is read as a whole.
// Thread-safety: pure function.
#ifndef LOCKSTEP_DATA_FOLDER_FILES_H_
#define LOCKSTEP_DATA_FOLDER_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::data {

// Returns the regular files of `folder` and of the folders in it, by name. A link to a regular file
// is that file under the link's name, unless the file is there already: under a name of its own, or
// that of a link before it in the order. Links to folders are not followed. Asks the file system
// about each file; blocks for it. Errors: NotFound when a link leads nowhere, which is named,
// unless it is an editor's lock (".#NAME"); FailedPrecondition when the folder cannot be read, or
// what one of its files is.
absl::StatusOr<std::vector<std::string>> FilesOfFolder(const std::string& folder);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_FOLDER_FILES_H_
