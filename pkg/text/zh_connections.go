package text

import "maps"

func init() { maps.Copy(zh, zhConnections) }

// zhConnections is what accel doctor says of established connections.
var zhConnections = Catalogue{
	"Still on the old algorithm": "仍在使用旧算法",
	"not known: %s":              "未知：%s",
	"a recording does not hold whose connections they are":                                "录制中没有记录连接属于谁",
	"this kernel cannot list connections":                                                 "此内核无法列出连接",
	"%s, %d processes: %d connections on %s":                                              "%s，%d 个进程：%d 个连接使用 %s",
	"%s, process %d: %d connections on %s":                                                "%s，进程 %d：%d 个连接使用 %s",
	"%s, process %d: one connection on %s":                                                "%s，进程 %d：一个连接使用 %s",
	"%s: %d, held by no process that can be seen (not accepted yet, or the kernel's own)": "%s：%d 个，不属于任何可见的进程（尚未被接受，或是内核自己的）",
	"%s: its own default is %s (from before, or set so)":                                  "%s：它自己的默认算法是 %s（在切换之前创建，或是这样设置的）",
	"connections: %s": "连接：%s",
	"(What closes its connections makes new ones: restart when that suits.)":             "（重启会断开现有连接，新建的才用新算法：请在合适的时候重启。）",
	"and %d more namespaces; all with --json":                                            "另有 %d 个命名空间；用 --json 查看全部",
	"and %d more groups of processes; all with --json":                                   "另有 %d 组进程；用 --json 查看全部",
	"%d more groups of processes are not listed":                                         "另有 %d 组进程未列出",
	"none: every connection that leaves the host has %s":                                 "没有：所有离开本机的连接都使用 %s",
	"none was seen: every connection that leaves the host has %s, as far as doctor sees": "没有看到：就 doctor 所见，所有离开本机的连接都使用 %s",
	"a pod's container %s": "pod 的容器 %s",
	"process %d":           "进程 %d",
	"as that user: %s":     "以该用户身份：%s",
	"delete the pod; what made it makes it anew":                    "删除该 pod；创建它的控制器会重新创建",
	"restart the container %s (%s)":                                 "重启容器 %s（%s）",
	"restart the program":                                           "重启该程序",
	"restart what runs in it":                                       "重启其中运行的程序",
	"log in again":                                                  "重新登录",
	"reboot":                                                        "重启系统",
	"set net.ipv4.tcp_congestion_control in it":                     "在其中设置 net.ipv4.tcp_congestion_control",
	"first make it the default again: accel enable %s":              "先把它重新设为默认：accel enable %s",
	"leave it: before kernel 5.18 bbr does not work well in pods":   "保持不动：内核 5.18 之前，bbr 在 pod 中效果不好",
	"%s; what keeps its algorithm then is the program's own choice": "%s；之后仍不变的就是程序自己的选择",
	"as far as is known a restart would not change it: the program sets it itself (TCP_CONGESTION), or a route (congctl) or a BPF program does": "就目前所知，重启不会改变它：程序自己设置（TCP_CONGESTION），或由路由（congctl）或 BPF 程序设置",
	"some processes or namespaces could not be looked into":                               "有些进程或命名空间无法查看",
	"other users' processes and namespaces could not be looked into; root sees them":      "其他用户的进程和命名空间无法查看；root 可以看到",
	"there is more on this host than doctor looks at, so some connections may be missing": "本机的数量超出 doctor 查看的范围，可能有连接未列出",
	"a container whose own default is another algorithm":                                  "一个容器自己的默认算法是别的算法",
	"%d containers whose own default is another algorithm":                                "%d 个容器自己的默认算法是别的算法",
}
