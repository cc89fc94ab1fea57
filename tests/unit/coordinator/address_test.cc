// SPDX-License-Identifier: Apache-2.0
// Where a coordinator listens when nobody says so, who may find its socket, and its token.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/fd.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/private_file.h"
#include "coordinator/client/token.h"
#include "coordinator/service/listen_address.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/token_file.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

class AddressTest : public ::testing::Test {
 protected:
  AddressTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    for (const char* name : {"xdg", "run", "tmp"}) {
      std::filesystem::create_directory(folder_ + "/" + name);
      chmod((folder_ + "/" + name).c_str(), 0755);
    }
    places_ = {folder_ + "/xdg", folder_ + "/run", folder_ + "/tmp", geteuid()};
  }
  ~AddressTest() override {
    umask(umask_);
    std::filesystem::remove_all(folder_);
  }
  static mode_t Mode(const std::string& path) {
    struct stat status = {};
    EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  }
  std::string InTmp() const { return places_.tmp + "/lockstep-" + std::to_string(places_.uid); }

  const mode_t umask_ = umask(022);
  std::string folder_;
  RuntimePlaces places_;
};

TEST_F(AddressTest, TheSessionsFolderComesFirst) {
  umask(0);
  EXPECT_EQ(*MakeRuntimeFolder(places_), places_.xdg + "/lockstep");
  EXPECT_EQ(Mode(places_.xdg + "/lockstep"), 0700u);
  EXPECT_EQ(*FindDefaultAddress(places_), "unix:" + places_.xdg + "/lockstep/coordinator.sock");
}

TEST_F(AddressTest, WithoutASessionThereIsAFolderOfTheUsersOwn) {
  places_.xdg.clear();
  places_.uid += 1;  // not root, and owner of nothing here
  const auto refused = MakeRuntimeFolder(places_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  places_.uid = geteuid();
  places_.run = folder_ + "/none";
  EXPECT_EQ(*MakeRuntimeFolder(places_), InTmp());
  EXPECT_EQ(Mode(InTmp()), 0700u);
}

TEST_F(AddressTest, FoldersThatOthersCanChangeAreNotUsed) {
  places_.xdg = folder_ + "/xdg";
  chmod(places_.xdg.c_str(), 0777);  // somebody else's session, or none
  places_.run = folder_ + "/none";
  EXPECT_EQ(*MakeRuntimeFolder(places_), InTmp());
  chmod(InTmp().c_str(), 0770);
  const auto refused = MakeRuntimeFolder(places_);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("others can write in"));
  EXPECT_NE(FindDefaultAddress(places_).value_or(""), DefaultAddressIn(InTmp()));
  // A link of that name leads where somebody else wants.
  rmdir(InTmp().c_str());
  std::filesystem::create_directory(folder_ + "/elsewhere");
  ASSERT_EQ(symlink((folder_ + "/elsewhere").c_str(), InTmp().c_str()), 0);
  EXPECT_THAT(std::string(MakeRuntimeFolder(places_).status().message()), HasSubstr("no folder"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/elsewhere"));
}

// A daemon that was started outside the session is found from within.
TEST_F(AddressTest, AVerbLooksWhereASocketLies) {
  RuntimePlaces daemon = places_;
  daemon.xdg.clear();
  daemon.run = folder_ + "/none";
  const std::string address = DefaultAddressIn(*MakeRuntimeFolder(daemon));
  auto listener = Listener::Bind(address);
  ASSERT_TRUE(listener.ok()) << listener.status();
  places_.run = daemon.run;
  EXPECT_EQ(*FindDefaultAddress(places_), address);
}

TEST_F(AddressTest, ASocketIsItsOwnersAloneWhateverTheUmask) {
  const std::string path = folder_ + "/socket";
  for (const mode_t mask : {0, 0777}) {
    umask(mask);
    auto listener = Listener::Bind("unix:" + path);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(Mode(path), 0600u);
    EXPECT_THAT(std::string(Listener::Bind("unix:" + path).status().message()),
                HasSubstr("in use"));
    listener->reset();
    EXPECT_FALSE(std::filesystem::exists(path)) << "it goes with its listener";
  }
}

TEST_F(AddressTest, AnOldSocketIsReplacedAndNothingElseIs) {
  const std::string path = folder_ + "/socket";
  {
    const UniqueFd dead(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, path.size());
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  }
  EXPECT_TRUE(Listener::Bind("unix:" + path).ok());
  std::ofstream(path) << "precious";
  EXPECT_THAT(std::string(Listener::Bind("unix:" + path).status().message()),
              HasSubstr("something else"));
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(AddressTest, ANameMeansTheAddressesThatItHas) {
  FakeClock clock;
  const auto family = [&clock](const std::string& host) {
    const auto found = ListenAddresses(host, 7070, &clock);
    return found.ok() ? static_cast<int>(found->front().bytes.ss_family) : -1;
  };
  EXPECT_EQ(family("10.0.0.1"), AF_INET);
  EXPECT_EQ(family("[fd00::1]"), AF_INET6);
  EXPECT_EQ(family("[no number]"), -1);
  const absl::Time start = clock.Now();
  EXPECT_EQ(family("no..name"), -1);
  EXPECT_GE(clock.Now() - start, kUnknownFor) << "it may become known";
  const auto local = ListenAddresses("localhost", 7070, &clock);
  ASSERT_TRUE(local.ok());
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&local->front().bytes);
  EXPECT_EQ(ntohl(v4->sin_addr.s_addr), INADDR_LOOPBACK) << "asked for by this name, it is meant";
}

TEST_F(AddressTest, AllAddressesAreThoseOfBothFamilies) {
  const auto listener = Listener::Bind("[::]:0", /*reachable=*/true);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string& address = (*listener)->address();
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  v4.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const UniqueFd caller(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(caller.get(), reinterpret_cast<const sockaddr*>(&v4), sizeof(v4)), 0)
      << address;
}

TEST_F(AddressTest, OnlyThisMachinesAddressesAreListenedOn) {
  for (const char* open : {"0.0.0.0:7070", "[::]:7070", "example.com:7070"}) {
    EXPECT_EQ(CheckListenAddress(open).code(), absl::StatusCode::kFailedPrecondition) << open;
  }
  for (const char* wrong : {"", "7070", "127.0.0.1:70700", "unix:", "unix-abstract:", "::1:7070"}) {
    EXPECT_EQ(CheckListenAddress(wrong).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  for (const std::string open : {"0.0.0.0:0", "[::]:7070", "10.0.0.1:7070"}) {
    EXPECT_TRUE(CheckListenAddress(open, /*plaintext=*/true).ok()) << open;
  }
  EXPECT_TRUE(CheckListenAddress("localhost:7070").ok());
  EXPECT_TRUE(CheckListenAddress("[::1]:7070").ok());
}

TEST_F(AddressTest, ATokenIsMadeOnceAndReadByItsOwnerAlone) {
  umask(0);
  std::filesystem::create_directory(folder_ + "/state");
  const std::string file = folder_ + "/state/token";
  const auto token = ReadOrMakeToken(file);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->size(), 64u);
  EXPECT_EQ(Mode(file), 0600u);
  EXPECT_EQ(*ReadOrMakeToken(file), *token);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/state"), {}), 1);
  EXPECT_NE(*ReadOrMakeToken(folder_ + "/other"), *token);
  EXPECT_EQ(ReadOrMakeToken(folder_ + "/none/token").status().code(), absl::StatusCode::kNotFound);
  chmod(file.c_str(), 0640);
  EXPECT_THAT(std::string(ReadToken(file).status().message()), HasSubstr("others can read"));
}

TEST(PrivateFile, AReplacedOneStaysWhereLinksLeadToAndKeepsItsMode) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/private-", ::getpid());
  std::filesystem::create_directories(folder + "/real");
  const std::string file = folder + "/real/token", link = folder + "/link";
  ASSERT_TRUE(WritePrivateFile(file, "token file", "old\n", /*replace=*/false).ok());
  std::filesystem::create_symlink("real/token", link);
  for (const mode_t mode : {0400, 0600, 0644}) {
    SCOPED_TRACE(mode);
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    const std::string text = absl::StrCat("new ", mode, "\n");
    ASSERT_TRUE(WritePrivateFile(link, "token file", text, /*replace=*/true).ok());
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_EQ(ReadPrivateFile(file, "token file").value(), text);
    struct stat status;
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, mode == 0644 ? 0600 : mode) << "one that others read is not";
  }
  std::filesystem::remove_all(folder);
}

TEST_F(AddressTest, AFileOfRootsMayHaveAGroupThatReadsIt) {
  EXPECT_TRUE(IsPrivate(0, 0440, 1000));
  EXPECT_TRUE(IsPrivate(0, 0640, 1000));
  EXPECT_TRUE(IsPrivate(1000, 0600, 1000));
  for (const mode_t open : {0660u, 0444u, 0450u, 0442u})
    EXPECT_FALSE(IsPrivate(0, open, 1000)) << open;
  EXPECT_FALSE(IsPrivate(0, 0440, 0));
  EXPECT_FALSE(IsPrivate(1000, 0640, 1000));
}

TEST_F(AddressTest, ATokenIsALineOfPlainSigns) {
  const auto write = [this](const std::string& text) {
    const std::string file = folder_ + "/token";
    std::ofstream(file) << text;
    chmod(file.c_str(), 0600);
    return ReadToken(file);
  };
  EXPECT_EQ(*write("  abc-1=\r\nnot this\n"), "abc-1=");
  EXPECT_EQ(*write("abc"), "abc");
  EXPECT_EQ(write("\n").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(write("a\x1b[1m").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadToken(folder_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(AddressTest, TheTokenOfTheUsersOwnCoordinatorIsFound) {
  const std::string folder = *MakeRuntimeFolder(places_);
  const std::string file = folder_ + "/secret";
  const std::string token = *ReadOrMakeToken(file);
  {
    const auto link = TokenLinkFile::Make(file, TokenLink(folder, "127.0.0.1:7070"));
    ASSERT_TRUE(link.ok()) << link.status();
    EXPECT_EQ(*FindToken("127.0.0.1:7070", places_), token);
    EXPECT_EQ(*FindToken("127.0.0.1:7071", places_), "") << "another coordinator is shown nothing";
    EXPECT_EQ(*FindToken("unix:/127.0.0.1:7070", places_), "");
  }
  EXPECT_EQ(*FindToken("127.0.0.1:7070", places_), "");
}

}  // namespace
}  // namespace lockstep::coordinator
