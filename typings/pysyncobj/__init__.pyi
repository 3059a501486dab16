from pysyncobj.syncobj import SyncObj as SyncObj
from pysyncobj.config import SyncObjConf as SyncObjConf
