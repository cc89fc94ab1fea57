// SPDX-License-Identifier: Apache-2.0
// Which files of a folder stay behind: the patterns of .lockstepignore, as those of .gitignore. A
// line is a pattern ('*' and '?' stop at '/', "**" between two is any folders, and at the end all
// that is in one); with '/' at its end it means folders, with one elsewhere it is meant from the
// top, with '!' before it what earlier lines left out comes with after all; '#' begins a comment.
// The last line that fits decides. Thread-safety: immutable.
#ifndef LOCKSTEP_LAUNCHER_PACKAGE_IGNORE_H_
#define LOCKSTEP_LAUNCHER_PACKAGE_IGNORE_H_

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

class IgnoreRules {
 public:
  // `.git`, and `runs` at the top, which runs make, are left out whatever the text says, unless it
  // says "!.git" or "!runs/".
  explicit IgnoreRules(std::string_view text);
  // Returns whether the file or folder with this path, from the top, stays behind. What is in a
  // folder that does is not asked about.
  bool Ignores(const std::string& path, bool is_folder) const;

 private:
  struct Rule {
    std::vector<std::string> pattern;  // its parts
    bool negated = false;
    bool folders_only = false;
    bool from_top = false;
  };
  void Add(std::string_view line);
  std::vector<Rule> rules_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_PACKAGE_IGNORE_H_
