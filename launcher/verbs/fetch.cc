// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/fetch.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/printable.h"
#include "common/sha256.h"
#include "common/status.h"
#include "launcher/agent/identity.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/file_receiver.h"
#include "launcher/verbs/run_verb.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kReply = absl::Seconds(5);

// Where a fetch puts files; says that the folder is no run's own.
constexpr const char* kMark = ".fetched";

// The run's folder, if this host has it: shared, or because the job ran here.
bool IsTheRuns(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "job.yaml", error) && !fs::exists(folder / kMark, error);
}

ModelFound LookForModelIn(const fs::path& folder, const FetchWish& wish) {
  const fs::path file = folder / "model" / "model.safetensors";
  std::error_code error;
  if (fs::equivalent(file, wish.another_model, error)) return ModelFound::kNotHere;
  return LookForModel(file, wish.model_sha256, wish.go_on);
}

// The weights beside a model that did not come with it are another run's.
void RemoveOldWeights(const fs::path& folder, const std::set<fs::path>& written) {
  for (const char* name : {"ema.safetensors", "best.safetensors"}) {
    std::error_code error;
    const fs::path file = folder / "model" / name;
    if (!written.contains(file)) fs::remove(file, error);
  }
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && !fs::exists(fs::path(folder) / kMark, error)) {
    FILE* const mark = std::fopen(absl::StrCat(folder, "/", kMark).c_str(), "w");
    if (mark != nullptr) std::fclose(mark);
    if (mark == nullptr) error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot make ", folder, ": ", error.message(), "; name another with --to"));
}

// Returns what the coordinator calls the run's folder, which is to lie below this one.
absl::StatusOr<std::string> FolderBelow(const std::string& run_dir) {
  const std::vector<std::string> parts = absl::StrSplit(run_dir, '/');
  if (std::all_of(parts.begin(), parts.end(), IsPlainName)) return run_dir;
  return absl::InvalidArgumentError(absl::StrCat("the coordinator calls the run's folder '",
                                                 Printable(run_dir),
                                                 "': name one for the files with --to"));
}

// What is to come from one node, and where to.
struct Part {
  const FileNode* node = nullptr;
  FetchRequest request;
  std::string folder;
  bool earlier = false;  // of workers that were there before
};

// Files that have the names of others, those of the job's present workers.
std::string FolderOfEarlier(const std::string& folder, const FileNode& node) {
  return absl::StrCat(folder, "/hosts/", node.node_id());
}

// The model lies with rank 0, logs on each; metrics, and logs of earlier lives, also where ranks
// were before. `missing`: of the model alone, which is not here.
std::vector<Part> PartsOf(const FetchWish& wish, const FindFilesResponse& found, bool missing,
                          const std::string& folder) {
  std::vector<Part> parts;
  const auto add = [&](const FileNode& node, bool earlier) -> FetchRequest& {
    Part& part = parts.emplace_back();
    part.node = &node;
    part.folder = earlier ? FolderOfEarlier(folder, node) : folder;
    part.earlier = earlier;
    part.request.set_job_id(found.job_id());
    part.request.set_node_id(node.node_id());
    return part.request;
  };
  for (const FileNode& node : found.nodes()) {
    const bool all = wish.all && node.has_model();
    if (missing) {
      if (!node.has_model()) continue;
      FetchRequest& request = add(node, false);
      request.set_model(true);
      request.set_all(all);
      continue;
    }
    if (wish.logs || wish.all || (wish.model && node.has_model())) {
      FetchRequest& request = add(node, false);
      request.set_logs(wish.logs || wish.all);
      request.set_model(wish.model && node.has_model());
      request.set_all(all);
    }
    if (wish.all && !all && IsPlainName(node.node_id())) add(node, true).set_records(true);
  }
  if (missing || !(wish.logs || wish.all)) return parts;
  for (const FileNode& node : found.left_nodes()) {
    if (!IsPlainName(node.node_id())) continue;
    FetchRequest& request = add(node, true);
    request.set_logs(true);
    request.set_records(wish.all);
  }
  return parts;
}

bool AreEqual(const fs::path& one, const fs::path& other) {
  std::ifstream a(one, std::ios::binary), b(other, std::ios::binary);
  if (!a || !b) return false;
  std::vector<char> left(1 << 16), right(1 << 16);
  while (true) {
    a.read(left.data(), static_cast<std::streamsize>(left.size()));
    b.read(right.data(), static_cast<std::streamsize>(right.size()));
    if (a.gcount() != b.gcount() ||
        !std::equal(left.begin(), left.begin() + a.gcount(), right.begin())) {
      return false;
    }
    if (a.bad() || b.bad()) return false;
    if (a.gcount() == 0) return true;
  }
}

// Where hosts share a folder all have the same files: what is in `folder` already goes, also from
// `written`.
void DropEqual(const fs::path& folder, const fs::path& earlier,
               const std::vector<std::string>& names, std::set<fs::path>* written) {
  std::error_code error;
  for (const std::string& name : names) {
    if (!AreEqual(folder / name, earlier / name)) continue;
    if (fs::remove(earlier / name, error)) written->erase(earlier / name);
  }
  // Only those that are empty.
  ::rmdir((earlier / "logs").c_str());
  ::rmdir(earlier.c_str());
  ::rmdir(earlier.parent_path().c_str());
}

}  // namespace

ModelFound LookForModel(const std::string& file, const std::string& sha256,
                        const std::function<bool()>& go_on) {
  if (::access(file.c_str(), F_OK) != 0) return ModelFound::kNotHere;
  std::ifstream in(file, std::ios::binary);
  if (!in || sha256.empty()) return ModelFound::kHere;
  Sha256 hash;
  std::vector<char> buffer(256 << 10);
  while (in) {
    if (go_on != nullptr && !go_on()) return ModelFound::kNotCompared;
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.Update(buffer.data(), static_cast<size_t>(in.gcount()));
  }
  return in.eof() && hash.FinishHex() == sha256 ? ModelFound::kHere : ModelFound::kNotHere;
}

absl::StatusOr<std::string> FetchModel(coordinator::FilesClient* client, const JobStatus& ended,
                                       const std::string& run_folder,
                                       const std::function<bool()>& go_on) {
  const JobResult& result = ended.result();
  if (ended.state() != SUCCEEDED || result.model_path().empty()) return "";
  if (LookForModel(result.model_path(), result.model_sha256(), go_on) != ModelFound::kNotHere) {
    return "";
  }
  FetchWish wish{.job = ended.job_id(), .model = true};
  wish.run_folder = run_folder;
  wish.model_sha256 = result.model_sha256();
  wish.another_model = result.model_path();
  wish.go_on = go_on;
  if (!go_on()) return absl::CancelledError("interrupted");
  LS_ASSIGN_OR_RETURN(const FetchedFiles fetched, FetchFiles(client, wish));
  if (!fetched.missing.empty()) return absl::NotFoundError(fetched.missing.front());
  return fetched.folder;
}

std::string FetchCommand(const JobStatus& status, const std::string& flags) {
  std::error_code error;
  if (status.run_dir().empty() || fs::exists(status.run_dir(), error)) return "";
  return absl::StrCat("launcher fetch", flags, " ", Printable(status.job_id()));
}

absl::StatusOr<FetchedFiles> FetchFiles(coordinator::FilesClient* client, const FetchWish& wish) {
  FindFilesRequest request;
  request.set_job_id(wish.job);
  LS_ASSIGN_OR_RETURN(FindFilesResponse found, client->FindFiles(request, kReply));
  if (found.nodes().empty() && found.left_nodes().empty()) {
    return absl::NotFoundError(
        absl::StrCat("job ", found.job_id(), " has had no worker yet, so it has no files"));
  }
  const bool any_model = std::any_of(found.nodes().begin(), found.nodes().end(),
                                     [](const FileNode& node) { return node.has_model(); });
  const bool no_model = wish.model && !any_model;
  if (no_model && !wish.logs) {
    return absl::NotFoundError(absl::StrCat("job ", found.job_id(),
                                            found.command()
                                                ? " runs a command, which writes no model"
                                                : " has not written a model yet"));
  }
  // While a job runs rank 0's node has its metrics.
  if (!any_model && wish.all && !found.nodes().empty()) found.mutable_nodes(0)->set_has_model(true);
  FetchedFiles fetched;
  fetched.folder = wish.to.empty() ? wish.run_folder : wish.to;
  if (fetched.folder.empty()) {
    LS_ASSIGN_OR_RETURN(fetched.folder, FolderBelow(found.run_dir()));
  }
  const bool is_the_runs = IsTheRuns(fetched.folder);
  if (is_the_runs && !wish.to.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(wish.to, " has a job.yaml that no fetch has put there: name another folder"));
  }
  // Each host has the files of its own ranks there, where disks are not shared.
  bool lacks_model = false;
  if (is_the_runs && any_model && (wish.model || wish.all)) {
    const ModelFound model = LookForModelIn(fetched.folder, wish);
    if (model == ModelFound::kNotCompared) {
      return absl::CancelledError("interrupted while the model that is there was looked at");
    }
    lacks_model = model == ModelFound::kNotHere;
  }
  if (is_the_runs && !lacks_model) {
    fetched.was_here = true;
    return fetched;
  }
  if (!is_the_runs) LS_RETURN_IF_ERROR(MakeFolder(fetched.folder));
  if (no_model && !found.command())
    fetched.missing.push_back("the job has not written a model yet");
  std::vector<std::pair<std::string, std::vector<std::string>>> earlier;  // by folder
  std::set<fs::path> written;
  for (const Part& part : PartsOf(wish, found, lacks_model, fetched.folder)) {
    FileReceiver receiver(part.folder);
    absl::Status got = client->Fetch(part.request, [&](const FilePiece& piece) {
      return piece.end() ? absl::OkStatus() : receiver.Take(piece);
    });
    if (got.ok()) got = receiver.Finish();
    for (const std::string& name : receiver.names()) written.insert(fs::path(part.folder) / name);
    if (part.earlier) earlier.emplace_back(part.folder, receiver.names());
    if (absl::IsCancelled(got)) {
      return absl::CancelledError(
          absl::StrCat("interrupted while host ", Printable(part.node->host()), " sent its files"));
    }
    // It may have been on its way there only.
    if (got.ok() || (part.earlier && absl::IsNotFound(got))) continue;
    const std::string host = absl::StrCat("host ", Printable(part.node->host()));
    const std::string why = Printable(std::string(got.message()));
    if (part.earlier) {
      fetched.left_behind.push_back(absl::StrCat(host, ", where the job was before: ", why));
    } else {
      fetched.missing.push_back(absl::StrCat(host, ": ", why));
    }
  }
  const bool model_came = written.contains(fs::path(fetched.folder) / "model/model.safetensors");
  if (model_came && wish.to.empty()) RemoveOldWeights(fetched.folder, written);
  for (const auto& [folder, names] : earlier) {
    DropEqual(fetched.folder, folder, names, &written);
  }
  fetched.files = static_cast<int64_t>(written.size());
  for (const fs::path& file : written) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(file, error);
    if (!error) fetched.bytes += static_cast<int64_t>(bytes);
  }
  if (fetched.files == 0 && !(fetched.missing.empty() && fetched.left_behind.empty())) {
    std::vector<std::string> all = fetched.missing;
    all.insert(all.end(), fetched.left_behind.begin(), fetched.left_behind.end());
    return absl::UnavailableError(absl::StrCat("no file was fetched; ", absl::StrJoin(all, "; ")));
  }
  return fetched;
}

std::string FetchJson(const FetchedFiles& fetched) {
  return JsonObject()
             .Add("schema", 1)
             .Add("folder", fetched.folder)
             .Add("files", fetched.files)
             .Add("bytes", fetched.bytes)
             .Raw("missing", JsonArrayOf(fetched.missing))
             .Raw("left_behind", JsonArrayOf(fetched.left_behind))
             .Done() +
         "\n";
}

int RunVerb(const FetchArgs& args) {
  StopSignals::Block();
  const absl::StatusOr<coordinator::ClientOptions> options = ClientOptionsOf(args.coordinator);
  if (!options.ok()) return Complain(options.status());
  const auto client = coordinator::FilesClient::Create(*options);
  StopSignals signals([&](int) { client->Stop(); });
  const absl::StatusOr<FetchedFiles> fetched = FetchFiles(
      client.get(),
      {.job = args.job, .logs = args.logs, .model = args.model, .all = args.all, .to = args.to});
  if (!fetched.ok()) return Complain(fetched.status());
  if (fetched->was_here && !args.common.quiet) {
    std::cerr << "the run's folder is on this host: nothing was fetched; where hosts do not share "
                 "it, --to FOLDER brings what each of them has"
              << std::endl;
  }
  for (const std::string& why : fetched->missing) {
    std::cerr << "not all files are here: " << why << std::endl;
  }
  for (const std::string& why : fetched->left_behind) {
    std::cerr << "earlier files are left behind: " << why << std::endl;
  }
  if (args.common.output == Output::kJson) {
    std::cout << FetchJson(*fetched);
  } else {
    std::cout << fetched->folder << "\n";
  }
  return fetched->missing.empty() ? kExitOk : kExitFailure;
}

}  // namespace lockstep::launcher
